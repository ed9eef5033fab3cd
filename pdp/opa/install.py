"""Installation of OPA's official release, verified with the published checksum.

Source: OPA's documentation, "Download OPA". Program and checksum come from the same server, so the checksum only shows
damage during the download, and https proves that it is the right server. Concurrent installations do not disturb each
other, and an interrupted installation leaves no program.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from pdp.errors import PdpError
from pdp.installed import extra
from pdp.opa.program import OPA_VARIABLE, OPA_VERSION, cached_opa, machine, opa_version

with extra("workbench"):
    import httpx

_PROGRAMS: Final = frozenset((system, processor) for system in ("linux", "darwin") for processor in ("amd64", "arm64"))
_BASE_URL: Final = "https://openpolicyagent.org/downloads"
# The maximum number of seconds to wait for a connection and for each further piece of the download, and for the whole
# download.
_PATIENCE: Final = 5.0
_LONGEST: Final = 900.0
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")
_LARGEST: Final = 200 * 1024 * 1024  # the maximum size of a download in bytes


class OpaInstallError(PdpError):
    """OPA could not be installed."""

    code: ClassVar[str] = "opa.install_failed"


def install_opa(progress: Callable[[str], None], *, base_url: str = _BASE_URL) -> Path:
    """Install OPA `OPA_VERSION` in the user's cache folder, replacing an installed program, and return its path.

    `progress` is called with lines of text. `base_url` is an https URL, or http on this machine, to which
    `/vVERSION/ASSET` is appended. Raises `OpaInstallError` if OPA cannot be downloaded, verified, written or run.
    """
    target = cached_opa()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="install-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            program = Path(folder) / "opa"
            program.write_bytes(asyncio.run(_download(base_url, progress)))
            program.chmod(0o755)
            _check_version(program)
            program.replace(target)
    except (OpaInstallError, OSError) as error:
        raise OpaInstallError(
            f"OPA {OPA_VERSION} could not be installed: {error}",
            hint=f"get OPA {OPA_VERSION} yourself and put it on PATH, or set {OPA_VARIABLE} to it",
        ) from error
    progress(f"OPA {OPA_VERSION} is installed: {target}")
    return target


def release_asset() -> str:
    """Return the name of the official OPA program for this machine. Raises `OpaInstallError` if there is none."""
    if machine() not in _PROGRAMS:
        raise OpaInstallError(f"there is no official OPA program for {' on '.join(machine())}")
    return "_".join(("opa", *machine()))


# Only an event loop can limit the whole download by one deadline, with the address lookup, TLS and a slow answer.
async def _download(base_url: str, progress: Callable[[str], None]) -> bytes:
    url = f"{base_url}/v{OPA_VERSION}/{release_asset()}"
    # Redirects are followed, because the releases are stored on another host, but each URL is checked.
    client = httpx.AsyncClient(
        follow_redirects=True,
        timeout=_PATIENCE,
        headers={"Connection": "close"},
        event_hooks={"request": [_check_place]},
    )
    try:
        async with asyncio.timeout(_LONGEST), client:
            checksum_file = await _content(client, f"{url}.sha256")
            progress(f"downloading {url}")
            content = await _content(client, url)
    except TimeoutError:
        raise OpaInstallError(f"{url}: download failed: not done within {_LONGEST:g} s") from None
    published, *_ = [*checksum_file.decode(errors="replace").split(), "nothing"]
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != published.lower():
        raise OpaInstallError(f"{url}: has the checksum {checksum}, expected {published[:64]}")
    return content


async def _content(client: httpx.AsyncClient, url: str) -> bytes:
    content = bytearray()
    try:
        async with client.stream("GET", url) as response:
            if not response.is_success:
                raise OpaInstallError(f"{url}: download failed: the server answered {response.status_code}")
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _LARGEST:
                    raise OpaInstallError(f"{url}: download failed: larger than {_LARGEST} bytes")
    except httpx.HTTPError as error:
        # httpx's timeout errors have an empty message.
        raise OpaInstallError(f"{url}: download failed: {str(error) or 'timed out'}") from error
    return bytes(content)


async def _check_place(request: httpx.Request) -> None:
    url = request.url
    if url.userinfo or not (url.scheme == "https" or (url.scheme == "http" and url.host in _THIS_MACHINE)):
        raise OpaInstallError(f"{url}: must be an https URL without a user")


def _check_version(program: Path) -> None:
    version = opa_version(program)
    if version != OPA_VERSION:
        raise OpaInstallError(
            f"the downloaded program {f'is version {version}' if version else 'does not run on this machine'}"
        )
