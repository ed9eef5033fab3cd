"""Installing OPA where there is none: its official release, checked against the checksum published beside it.

Source: OPA's documentation, "Download OPA": `https://openpolicyagent.org/downloads/vVERSION/opa_SYSTEM_PROCESSOR`, the
checksum under the same name with `.sha256` behind it. Both come from one place, so the checksum shows what was damaged
on the way; that the place is the right one is for https to show.

An installation works in a folder of its own within the cache, and the program takes its place only when it has shown
its version: installations at the same time do not disturb each other, and one that is broken off leaves nothing.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from pdp.errors import PdpError
from pdp.installed import extra
from pdp.workbench.opa.program import OPA_VARIABLE, OPA_VERSION, cached_opa, opa_version, processor, system

with extra("workbench"):
    import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ASSETS: Final = {
    ("linux", "amd64"): "opa_linux_amd64_static",
    ("linux", "arm64"): "opa_linux_arm64_static",
    ("darwin", "amd64"): "opa_darwin_amd64",
    ("darwin", "arm64"): "opa_darwin_arm64_static",
}
_CHECKSUM: Final = re.compile(rb"([0-9a-fA-F]{64})(?:[ \t]+\*?([^\s]+))?\s*")
_LARGEST_CHECKSUM: Final = 1024
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1"))


class OpaInstallError(PdpError):
    """OPA could not be installed."""

    code: ClassVar[str] = "opa.install_failed"


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """Where releases are published, and how patient to be with it.

    Attributes:
        base_url: https, or http on this very machine; `/vVERSION/ASSET` follows.
        patience: seconds to wait for a connection, and then for each further piece.
        longest: seconds for a whole file.
        largest: bytes that a program may have.
    """

    base_url: str = "https://openpolicyagent.org/downloads"
    patience: float = 5.0
    longest: float = 900.0
    largest: int = 200 * 1024 * 1024


OFFICIAL: Final = ReleaseSource()


def install_opa(progress: Callable[[str], None], *, source: ReleaseSource = OFFICIAL) -> Path:
    """Install OPA of version `OPA_VERSION` into the user's cache folder, whatever is there, and return the program.

    Args:
        progress: is called with one line of text when the download begins and when it is installed.
        source: where releases are published.

    Raises:
        OpaInstallError: it cannot be downloaded or written, is not what the checksum says, or does not run here.
    """
    target = cached_opa()
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="install-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            program = _downloaded(Path(folder), source, progress)
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
    """Return the name of the official program for this machine.

    Raises:
        OpaInstallError: there is none.
    """
    asset = _ASSETS.get((system(), processor()))
    if asset is None:
        raise OpaInstallError(f"there is no official program for {system()} on {processor()}")
    return asset


def _downloaded(folder: Path, source: ReleaseSource, progress: Callable[[str], None]) -> Path:
    asset = release_asset()
    url = f"{source.base_url}/v{OPA_VERSION}/{asset}"
    program = folder / asset
    with _client(source) as client:
        expected = _published_checksum(client, f"{url}.sha256", asset, source)
        progress(f"downloading {url}")
        digest = hashlib.sha256()
        with program.open("wb") as file:
            for piece in _pieces(client, url, source, source.largest):
                file.write(piece)
                digest.update(piece)
    if digest.hexdigest() != expected:
        raise OpaInstallError(f"{url} has the checksum {digest.hexdigest()}, published is {expected}")
    program.chmod(0o755)
    return program


def _check_version(program: Path) -> None:
    version = opa_version(program)
    if version != OPA_VERSION:
        raise OpaInstallError(f"the program {f'is version {version}' if version else 'does not run here'}")


def _published_checksum(client: httpx.Client, url: str, asset: str, source: ReleaseSource) -> str:
    match = _CHECKSUM.fullmatch(b"".join(_pieces(client, url, source, _LARGEST_CHECKSUM)))
    if not match or match[2] not in (None, asset.encode()):
        raise OpaInstallError(f"{url} is not the checksum of {asset}")
    return match[1].decode().lower()


def _pieces(client: httpx.Client, url: str, source: ReleaseSource, largest: int) -> Iterator[bytes]:
    """Yield what is at `url`, piece by piece, within the bounds."""
    deadline = time.monotonic() + source.longest
    size = 0
    try:
        with client.stream("GET", url) as response:
            response.raise_for_status()
            for piece in response.iter_raw():  # as they arrive: pieces of one size would be waited for
                size += len(piece)
                if size > largest:
                    raise OpaInstallError(f"{url} is larger than {largest} bytes")
                if time.monotonic() > deadline:
                    raise OpaInstallError(f"{url} did not arrive within {source.longest:g} s")
                yield piece
    except httpx.HTTPStatusError as error:
        raise OpaInstallError(f"{url}: download failed: the server answered {error.response.status_code}") from error
    except httpx.TimeoutException as error:
        raise OpaInstallError(f"{url}: download failed: no data for {source.patience:g} s") from error
    except httpx.HTTPError as error:
        raise OpaInstallError(f"{url}: download failed: {error}") from error


def _client(source: ReleaseSource) -> httpx.Client:
    # Redirects are followed, as releases are stored elsewhere, but each place is checked. No connection is kept: for
    # two files it gains nothing, and a server that closes it meanwhile would fail the second.
    return httpx.Client(
        follow_redirects=True,
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=source.patience,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [_check_place]},
    )


def _check_place(request: httpx.Request) -> None:
    url = request.url
    if url.scheme != "https" and not (url.scheme == "http" and url.host in _LOOPBACK):
        raise OpaInstallError(f"{url} is not https")
