"""The container of a bundle: a gzipped tar of plain files, of which there is one form for each content."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from typing import TYPE_CHECKING, Final

from pdp.engine.bundle.signature import SIGNATURES
from pdp.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CONTAINER: Final = 64 * 1024 * 1024
"""Largest file in bytes, packed as well as unpacked."""

REGO_ROOTS: Final = ("authz", "custom")
"""Where policies stand: ours, the user's."""

REBUILD: Final = "build the bundle again with `pdp bundle build`"
COPY: Final = "copy the file again, or build it with `pdp bundle build`"
"""What to do about a file that was made wrongly, and about one that was damaged."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BLOCK: Final = 65535
_EXTENSIONS: Final = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
    tarfile.GNUTYPE_SPARSE,
)  # fmt: skip
_NO_TAR: Final = "not a tar file inside, or a damaged one"
_NO_END: Final = "the tar file inside is damaged, or something follows its end"


def unpack_bundle(packed: bytes) -> dict[str, bytes]:
    """Return a bundle's members by name, of which only the container is checked.

    Raises:
        BundleError: not a gzipped tar of plain files with a place in a bundle.
    """
    return _untar(_gunzip(packed))


def pack_members(files: Mapping[str, bytes]) -> bytes:
    """Return the file with these members: the only one that there is of them."""
    return b"".join(_gzip(_tar(files)))


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            try:
                tar.addfile(member, io.BytesIO(content))
            except ValueError as error:
                raise BundleError(f"{path}: the path is too long for a bundle", hint="use shorter names") from error
    return packed.getvalue()


# Stored, not compressed: compressed bytes differ between builds of zlib, and then a bundle could not be built again.
def _gzip(content: bytes) -> Iterator[bytes]:
    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    for start in range(0, len(content), _BLOCK):
        block = content[start : start + _BLOCK]
        last = start + _BLOCK >= len(content)
        yield struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF)
        yield block
    yield struct.pack("<II", zlib.crc32(content), len(content))


def _gunzip(packed: bytes) -> bytes:
    if len(packed) > MAX_CONTAINER:
        raise BundleError(f"larger than {MAX_CONTAINER} bytes", hint="is this a bundle?")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # The limit is zlib's own: it stops there, so that a bomb takes no more memory than the largest bundle does.
        content = unpacker.decompress(packed, MAX_CONTAINER + 1)
    except zlib.error as error:
        raise BundleError("not a gzip file, or a damaged one", hint=COPY) from error
    if len(content) > MAX_CONTAINER:
        raise BundleError(f"unpacks to more than {MAX_CONTAINER} bytes", hint="is this a bundle?")
    if not unpacker.eof:
        raise BundleError("cut off", hint=COPY)
    if unpacker.unused_data:
        raise BundleError("something follows the end of the gzip file", hint=COPY)
    return content


# Header by header and not with `TarFile`, which obeys extensions: a few bytes of one make a file gigabytes long.
def _untar(content: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    at = 0
    while (member := _header(content, at)) is not None:
        _check_member(member, files)
        at += tarfile.BLOCKSIZE
        if not 0 <= member.size <= len(content) - at:
            raise BundleError(_NO_TAR, hint=COPY)
        files[member.name] = content[at : at + member.size]
        at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    if content[at:].strip(b"\0"):
        raise BundleError(_NO_END, hint=COPY)
    return files


def _header(content: bytes, at: int) -> tarfile.TarInfo | None:
    """Return the header that stands there, or None where the tar ends."""
    block = content[at : at + tarfile.BLOCKSIZE]
    if len(block) == tarfile.BLOCKSIZE and not block.strip(b"\0"):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise BundleError(_NO_END if at else _NO_TAR, hint=COPY) from error


def _check_member(member: tarfile.TarInfo, files: Mapping[str, bytes]) -> None:
    shown = repr(member.name[:100])
    if member.type in _EXTENSIONS:
        raise BundleError(f"{shown} is an extension of tar (PAX, GNU); a bundle needs none", hint=REBUILD)
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise BundleError(f"{shown} is a link, a folder or a device; a bundle has files only", hint=REBUILD)
    if member.name in files:
        raise BundleError(f"{shown} stands twice in the bundle", hint=REBUILD)
    if member.name in (".manifest", SIGNATURES, "data.json", "policy.wasm"):
        return
    segments = member.name.split("/")
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise BundleError(f"{shown} is not a relative path of plain names", hint=REBUILD)
    if len(segments) == 1 or segments[0] not in REGO_ROOTS or not member.name.endswith(".rego"):
        raise BundleError(f"{shown} has no place in a bundle", hint=REBUILD)
