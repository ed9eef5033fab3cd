"""The bundle file: how it is laid out, written and read.

A bundle is one gzipped tar for both engines: an OPA server loads it as it is, the embedded engine takes `policy.wasm`.

    .manifest      OPA's: {"revision", "roots", "rego_version": 1, "metadata": {"format": 1, "release"}}
    data.json      the base documents: config, directory, manifests, settings
    policy.wasm    the Rego below, compiled; `.manifest` does not name it, so that OPA ignores it
    .signatures.json   OPA's signature, if it is signed: `pdp.engine.bundle.signature`
    authz/**.rego  the baseline's modules;  custom/**.rego  the user's

The revision is a digest of all of these but itself, the release number and the signature, so any change shows. Only the
signature says who built the bundle. There is one container for each content, `pack_members`, and no other is read.
"""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle import SIGNATURES
from pdp.errors import BundleError
from pdp.installed import packaged
from pdp.json import MAX_NUMBER, JsonValueError, canonical, digest, parse_json

if TYPE_CHECKING:  # only signed bundles load it
    from pdp.engine.bundle.signature import Signature, VerificationKey

FORMAT: Final = 1  # the layout above; a file of another one is refused
MAX_BUNDLE: Final = 64 * 1024 * 1024  # largest bundle in bytes, packed as well as unpacked
REGO_ROOTS: Final = ("authz", "custom")  # where policies stand: ours, the user's

DATA_ROOTS: Final = ("config", "directory", "manifests", "settings")
"""Where data stands. Data anywhere else could pose as policy, and is refused wherever it comes in."""

ROOTS: Final = tuple(sorted(REGO_ROOTS + DATA_ROOTS))  # what OPA may take from a bundle

_REBUILD: Final = "build the bundle again with `pdp bundle build`"
_COPY: Final = "copy the file again, or build it with `pdp bundle build`"
_VERSIONS: Final = "bundle and program must be of the same version: update the one or build the other again"
_NOT_A_TAR: Final = "not a tar file inside, or a damaged one"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BLOCK: Final = 65535


@dataclass(frozen=True, slots=True)
class Bundle:
    """What an engine decides by.

    Attributes:
        revision: `sha256:` and the digest of the content.
        release: counts upwards from 1; an enforcement point refuses a lower one than it has seen.
        wasm: the module for the embedded engine.
        data: the base documents by root, `config.bundle` with revision and release among them.
        modules: the Rego texts by path.
        size: of the file, in bytes.
        digest: `sha256:` and the digest of the file itself, container, signature and all.
        signature: who signed it, or None. Two files with one content are equal, whoever signed them.
    """

    revision: str
    release: int
    wasm: bytes
    data: Mapping[str, Any]
    modules: Mapping[str, str]
    size: int
    digest: str = field(default="", compare=False)
    signature: Signature | None = field(default=None, compare=False)


def baseline_bundle_path() -> Path:
    """Return where the released baseline bundle is: packaged beside the code, or in the checkout's `bundles/`."""
    return packaged("bundles/baseline.tar.gz")


def pack_bundle(*, release: int, wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> bytes:
    """Return the bundle's file, of parts as `Bundle` has them. The same content gives the same bytes on every machine.

    `config.bundle` is filled in. JsonValueError: the data are not JSON; BundleError: what was packed cannot be read
    again: a root, a path or a size that is not admitted.
    """
    revision = _revision(wasm, data, modules)
    config = {**data.get("config", {}), "bundle": {"revision": revision, "release": release}}
    files = {
        ".manifest": canonical(_manifest(revision, release)),
        "data.json": canonical({**data, "config": config}),
        "policy.wasm": wasm,
        **{path: text.encode() for path, text in modules.items()},
    }
    packed = pack_members(files)
    read_bundle(packed)
    return packed


def read_bundle(source: Path | bytes, *, keys: Sequence[VerificationKey] | None = None) -> Bundle:
    """Read a bundle, believing nothing of it: sizes, paths, JSON, roots and digest are checked.

    Args:
        source: the file, or its content.
        keys: who is trusted. The bundle must be signed with one of them. None: a signature is shown and not verified.

    Raises:
        BundleError: not a whole bundle of this version, unchanged since it was built; with `keys`, unsigned or signed
            by somebody else.
    """
    name = "bundle" if isinstance(source, bytes) else str(source)
    packed = source if isinstance(source, bytes) else read_packed(source)
    try:
        files = unpack_bundle(packed)
        signature = _signature(files, keys)
        revision, release = _identity(_take(files, ".manifest"))
        data = _data(_take(files, "data.json"), {"revision": revision, "release": release})
        wasm = _take(files, "policy.wasm")
        modules = {path: _module(path, content) for path, content in sorted(files.items())}
    except BundleError as error:
        raise BundleError(f"{name}: {error.message}", hint=error.hint) from error
    if _revision(wasm, data, modules) != revision:
        raise BundleError(f"{name}: the content is not what its revision names: it was changed", hint=_COPY)
    return Bundle(revision, release, wasm, data, modules, len(packed), digest(packed), signature)


def _signature(files: dict[str, bytes], keys: Sequence[VerificationKey] | None) -> Signature | None:
    """Take the signature out of `files`, verified if there are keys."""
    content = files.pop(SIGNATURES, None)
    if keys is not None:
        from pdp.engine.bundle.signature import verify_signature  # noqa: PLC0415 - only where it is verified

        return verify_signature(content, files, keys)
    if content is None:
        return None
    from pdp.engine.bundle.signature import claimed_signature  # noqa: PLC0415 - only signed bundles

    return claimed_signature(content)[1]


def _manifest(revision: str, release: int) -> dict[str, Any]:
    metadata = {"format": FORMAT, "release": release}
    return {"revision": revision, "roots": list(ROOTS), "rego_version": 1, "metadata": metadata}


def _revision(wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> str:
    config = {key: value for key, value in data.get("config", {}).items() if key != "bundle"}
    contents = {"data.json": canonical({**data, "config": config}), "policy.wasm": wasm}
    contents |= {path: text.encode() for path, text in modules.items()}
    return digest(canonical({path: digest(content) for path, content in contents.items()}))


def read_packed(path: Path) -> bytes:
    """Return the bytes of a bundle's file, or as many as `read_bundle` needs to refuse it; BundleError: unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BUNDLE + 1)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}", hint="name a bundle file") from error


def _take(files: dict[str, bytes], name: str) -> bytes:
    if name not in files:
        raise BundleError(f"{name} is missing", hint=_REBUILD)
    return files.pop(name)


def _json(name: str, content: bytes) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except JsonValueError as error:
        raise BundleError(f"{name}: {error}", hint=_REBUILD) from error
    if not isinstance(value, dict):
        raise BundleError(f"{name}: not an object", hint=_REBUILD)
    # The signature and the revision are of the value: its spelling would be free.
    if canonical(value) != content:
        raise BundleError(f"{name}: not in canonical form (RFC 8785)", hint=_REBUILD)
    return value


def _identity(content: bytes) -> tuple[str, int]:
    manifest = _json(".manifest", content)
    metadata = manifest.get("metadata")
    stated = metadata if isinstance(metadata, dict) else {}
    revision, release, version = manifest.get("revision"), stated.get("release"), stated.get("format")
    if type(version) is not int or version != FORMAT:
        raise BundleError(f".manifest: format {version!r:.20}, this program reads format {FORMAT}", hint=_VERSIONS)
    if (
        type(release) is not int
        or not 1 <= release <= MAX_NUMBER
        or not isinstance(revision, str)
        or content != canonical(_manifest(revision, release))
    ):
        expected = canonical(_manifest("sha256:...", 1)).decode()
        raise BundleError(f".manifest: it must be {expected}, with a release from 1 upwards", hint=_VERSIONS)
    return revision, release


def _data(content: bytes, identity: Mapping[str, Any]) -> dict[str, Any]:
    data = _json("data.json", content)
    for root, value in data.items():
        if root not in DATA_ROOTS:
            raise BundleError(
                f"data.json: the root {root!r:.40} is not admitted, only {', '.join(DATA_ROOTS)} are", hint=_REBUILD
            )
        if not isinstance(value, dict):
            raise BundleError(f"data.json: {root} is not an object", hint=_REBUILD)
    for name, document in data.get("manifests", {}).items():
        if name != digest(canonical(document)):
            raise BundleError(f"data.json: manifest {name:.80} is another one than its digest names", hint=_REBUILD)
    if canonical(data.get("config", {}).get("bundle")) != canonical(identity):
        raise BundleError("data.json: config.bundle is not the revision and release of .manifest", hint=_REBUILD)
    return data


def _module(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text", hint=_REBUILD) from error


# The container


def unpack_bundle(packed: bytes) -> dict[str, bytes]:
    """Return a bundle's members by name, nothing in them checked; BundleError unless `pack_members` writes it so."""
    content = _gunzip(packed)
    files: dict[str, bytes] = {}
    start = 0
    # Header by header and not with `TarFile`, which obeys extensions: a few bytes of one make a file gigabytes long.
    while (header := content[start : start + tarfile.BLOCKSIZE]).strip(b"\0"):
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise BundleError(_NOT_A_TAR, hint=_COPY) from error
        _check_name(member.name)
        start += tarfile.BLOCKSIZE
        if not 0 <= member.size <= len(content) - start:
            raise BundleError(_NOT_A_TAR, hint=_COPY)
        files[member.name] = content[start : start + member.size]
        start += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    # Signature and revision are over contents; links, times, modes and whatever else a container has would be free.
    if pack_members(files) != packed:
        raise BundleError("the file is not laid out as `pdp bundle` writes it: it was changed", hint=_COPY)
    return files


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
    if len(packed) > MAX_BUNDLE:
        raise BundleError(f"larger than {MAX_BUNDLE} bytes", hint="is this a bundle?")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # The limit is zlib's own: it stops there, so that a bomb takes no more memory than the largest bundle does.
        content = unpacker.decompress(packed, MAX_BUNDLE + 1)
    except zlib.error as error:
        raise BundleError("not a gzip file, or a damaged one", hint=_COPY) from error
    if len(content) > MAX_BUNDLE:
        raise BundleError(f"unpacks to more than {MAX_BUNDLE} bytes", hint="is this a bundle?")
    if not unpacker.eof:
        raise BundleError("cut off" if packed else "empty", hint=_COPY)
    return content


def _check_name(name: str) -> None:
    if name in (".manifest", SIGNATURES, "data.json", "policy.wasm"):
        return
    shown, segments = repr(name[:100]), name.split("/")
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise BundleError(f"{shown} is not a relative path of plain names", hint=_REBUILD)
    if len(segments) == 1 or segments[0] not in REGO_ROOTS or not name.endswith(".rego"):
        raise BundleError(f"{shown} has no place in a bundle", hint=_REBUILD)
