"""The official release of OPA: downloaded, and checked against the checksum published beside it.

Source: OPA's documentation, "Download OPA": `https://openpolicyagent.org/downloads/vVERSION/opa_SYSTEM_PROCESSOR`, the
checksum under the same name with `.sha256` behind it. Both come from one place, so the checksum shows what was damaged
on the way; that the place is the right one is for https to show.
"""

from __future__ import annotations

import hashlib
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pdp.workbench.opa.program import OPA_VERSION, OpaInstallError, processor, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPMessage, HTTPResponse
    from pathlib import Path
    from typing import IO

_ASSETS: Final = {
    ("linux", "amd64"): "opa_linux_amd64_static",
    ("linux", "arm64"): "opa_linux_arm64_static",
    ("darwin", "amd64"): "opa_darwin_amd64",
    ("darwin", "arm64"): "opa_darwin_arm64_static",
    ("windows", "amd64"): "opa_windows_amd64.exe",
}
_CHECKSUM: Final = re.compile(rb"([0-9a-fA-F]{64})(?:[ \t]+\*?([^\s]+))?\s*")
_LARGEST_CHECKSUM: Final = 1024
_PIECE: Final = 256 * 1024
_MEGABYTE: Final = 1_000_000
_STEPS: Final = 5
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1"))


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


def release_asset() -> str:
    """Return the name of the official program for this machine.

    Raises:
        OpaInstallError: there is none.
    """
    asset = _ASSETS.get((system(), processor()))
    if asset is None:
        raise OpaInstallError(f"there is no official program for {system()} on {processor()}")
    return asset


def download_release(folder: Path, source: ReleaseSource, progress: Callable[[str], None]) -> Path:
    """Download this machine's program into `folder`, check its checksum, and return it, executable.

    Raises:
        OpaInstallError: it cannot be had, or is not what the checksum says.
        OSError: it cannot be written.
    """
    asset = release_asset()
    url = f"{source.base_url}/v{OPA_VERSION}/{asset}"
    expected = _published_checksum(f"{url}.sha256", asset, source)
    program = folder / asset
    with program.open("wb") as file:
        found = _download(url, file, source, progress)
    if found != expected:
        raise OpaInstallError(f"{url} has the checksum {found}, published is {expected}")
    program.chmod(0o755)
    return program


def _published_checksum(url: str, asset: str, source: ReleaseSource) -> str:
    content = b"".join(_pieces(url, source, _LARGEST_CHECKSUM))
    match = _CHECKSUM.fullmatch(content)
    if not match or match[2] not in (None, asset.encode()):
        raise OpaInstallError(f"{url} is not the checksum of {asset}")
    return match[1].decode().lower()


def _download(url: str, file: IO[bytes], source: ReleaseSource, progress: Callable[[str], None]) -> str:
    digest, size, step = hashlib.sha256(), 0, _STEPS * _MEGABYTE
    progress(f"downloading {url}")
    for piece in _pieces(url, source, source.largest):
        file.write(piece)
        digest.update(piece)
        size += len(piece)
        if size >= step:
            progress(f"downloaded {size // _MEGABYTE} MB")
            step += _STEPS * _MEGABYTE
    return digest.hexdigest()


def _pieces(url: str, source: ReleaseSource, largest: int) -> Iterator[bytes]:
    """Yield what is at `url`, piece by piece, within the bounds."""
    deadline = time.monotonic() + source.longest
    try:
        with _open(url, source.patience) as response:
            announced, size = response.length, 0
            while piece := response.read1(_PIECE):
                size += len(piece)
                if size > largest:
                    raise OpaInstallError(f"{url} is larger than {largest} bytes")
                if time.monotonic() > deadline:
                    raise OpaInstallError(f"{url} did not arrive within {source.longest:g} s")
                yield piece
            if announced is not None and size != announced:
                raise OpaInstallError(f"{url} ended after {size} of {announced} bytes")
    except (OSError, HTTPException) as error:
        raise OpaInstallError(f"{url} {_why(error, source.patience)}") from error


def _why(error: OSError | HTTPException, patience: float) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"cannot be had: the server answered {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"cannot be had: nothing came for {patience:g} s"
    if isinstance(reason, IncompleteRead):
        return "ended in the middle"
    if isinstance(reason, HTTPException) and not isinstance(reason, OSError):
        return "cannot be had: the server does not answer in HTTP"
    return f"cannot be had: {reason.strerror if isinstance(reason, OSError) and reason.strerror else reason}"


def _open(url: str, patience: float) -> HTTPResponse:
    _check_place(url)
    opener = urllib.request.build_opener(_SafeRedirects)
    response: HTTPResponse = opener.open(urllib.request.Request(url), timeout=patience)  # noqa: S310 - checked above
    return response


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects (releases are stored elsewhere), but never from https to something weaker."""

    def redirect_request(  # noqa: PLR0917 - the signature is the library's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        try:
            _check_place(newurl)
        except OpaInstallError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_place(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise OpaInstallError(f"{url} is not https")
