"""Installing OPA where there is none: its official release, checked against the checksum published beside it.

Source: OPA's documentation, "Download OPA": `https://openpolicyagent.org/downloads/vVERSION/opa_SYSTEM_PROCESSOR`, the
checksum under the same name with `.sha256` behind it. Both come from one place, so the checksum shows what was damaged
on the way; that the place is the right one is for https to show.

An installation works in a folder of its own within the cache, and the program takes its place only when it has shown
its version: installations at the same time do not disturb each other, and one that is broken off leaves nothing.
"""

import asyncio
import hashlib
import tempfile
from pathlib import Path
from typing import ClassVar, Final

from pdp.client.client import secure_url
from pdp.errors import PdpError
from pdp.installed import extra
from pdp.workbench.opa.program import OPA_VARIABLE, OPA_VERSION, cached_opa, machine, opa_version

with extra("workbench"):
    import httpx
from collections.abc import Callable

_PROGRAMS: Final = frozenset((system, processor) for system in ("linux", "darwin") for processor in ("amd64", "arm64"))
_BASE_URL: Final = "https://openpolicyagent.org/downloads"
# Seconds to wait for a connection, and then for each further piece; and those for the whole download.
_PATIENCE: Final = 5.0
_LONGEST: Final = 900.0
_LARGEST: Final = 200 * 1024 * 1024  # bytes that a file may have


class OpaInstallError(PdpError):
    """OPA could not be installed."""

    code: ClassVar[str] = "opa.install_failed"


def install_opa(progress: Callable[[str], None], *, base_url: str = _BASE_URL) -> Path:
    """Install OPA of version `OPA_VERSION` into the user's cache folder, whatever is there, and return the program.

    Args:
        progress: is called with one line of text when the download begins and when it is installed.
        base_url: https, or http on this very machine; `/vVERSION/ASSET` follows.

    OpaInstallError: it cannot be downloaded or written, is not what the checksum says, or does not run here.
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
    """Return the name of the official program for this machine."""
    if machine() not in _PROGRAMS:
        raise OpaInstallError(f"there is no official program for {' on '.join(machine())}")
    return "_".join(("opa", *machine()))


# In an event loop, since only there one deadline bounds everything: lookup, TLS, and an answer that drips.
async def _download(base_url: str, progress: Callable[[str], None]) -> bytes:
    url = f"{base_url}/v{OPA_VERSION}/{release_asset()}"
    # Redirects are followed, as releases are stored elsewhere, but each place is checked.
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
        raise OpaInstallError(f"{url} has the checksum {checksum}, published is {published[:64]}")
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
                    raise OpaInstallError(f"{url}: download failed: it has more than {_LARGEST} bytes")
    except httpx.HTTPError as error:
        # A time-out has no words.
        raise OpaInstallError(f"{url}: download failed: {str(error) or 'timed out'}") from error
    return bytes(content)


async def _check_place(request: httpx.Request) -> None:
    try:
        secure_url(str(request.url))
    except ValueError as error:
        raise OpaInstallError(f"{request.url}: {error}") from None


def _check_version(program: Path) -> None:
    version = opa_version(program)
    if version != OPA_VERSION:
        raise OpaInstallError(f"the program {f'is version {version}' if version else 'does not run here'}")
