"""The bundle file: its layout, and the functions that write and read the file.

A bundle is a gzipped tar. An OPA server loads the bundle unchanged. The embedded engine uses `policy.wasm`.

    .manifest      OPA's: {"revision", "roots", "rego_version": 1, "metadata": {"format": 1, "release"}}
    data.json      the base documents: config, directory, manifests, settings
    policy.wasm    the compiled Rego modules; OPA ignores this file, because `.manifest` does not name it
    .signatures.json   OPA's signature, if the bundle is signed: `pdp.engine.bundle.signature`
    authz/**.rego  the baseline's modules;  custom/**.rego  the user's

The revision is a digest of all content except the revision, the release number and the signature. Any change of that
content changes the revision, but only the signature proves who built the bundle. Only the layout that `pack_members`
writes is accepted.
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

if TYPE_CHECKING:  # This module is loaded only for signed bundles
    from pdp.engine.bundle.signature import Signature, VerificationKey

FORMAT: Final = 1  # The version of the bundle format; files of other versions are rejected.
MAX_BUNDLE: Final = 64 * 1024 * 1024  # The maximum size of a bundle in bytes, both packed and unpacked.
REGO_ROOTS: Final = ("authz", "custom")  # The root packages of the policies: the baseline's and the user's.

DATA_ROOTS: Final = ("config", "directory", "manifests", "settings")
"""The allowed top-level keys of data. Data under any other key could replace policy, so it is always rejected."""

# the root keys under which OPA may load data and policies from a bundle
ROOTS: Final = tuple(sorted(REGO_ROOTS + DATA_ROOTS))

_REBUILD: Final = "build the bundle again with `pdp bundle build`"
_COPY: Final = "copy the file again, or build the bundle with `pdp bundle build`"
_VERSIONS: Final = "bundle and program have different versions: update the program, or build the bundle again"
_NOT_A_TAR: Final = "damaged, or no tar file inside the gzip file"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BLOCK: Final = 65535


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle's content: the policies and data that an engine decides with.

    `release` counts from 1, and `size` is in bytes. `revision` is the digest of the content, `digest` is the digest of
    the whole file. Bundles with the same content are equal, even if their signatures differ.
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
    """Return the path of the released baseline bundle: packaged with the code, or `bundles/` in a checkout."""
    return packaged("bundles/baseline.tar.gz")


def pack_bundle(*, release: int, wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> bytes:
    """Return the bytes of a bundle file, with `config.bundle` filled in. Every machine returns the same bytes.

    Raises `JsonValueError` if the data is not JSON, `BundleError` if a root, a path or the size is not allowed.
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
    """Read a bundle and verify it: sizes, paths, JSON, top-level keys of data, and digest.

    Args:
        source: the path of the file, or its content.
        keys: the trusted public keys, one of which must have signed the bundle. None: signatures are not verified.

    Raises:
        BundleError: the bundle is damaged, changed or of another version; with `keys`, also if it is unsigned or signed
            with another key.

    Examples:
        >>> from pathlib import Path
        >>> bundle = read_bundle(Path("../../bundles/payments.tar.gz"))
        >>> bundle.release > 0, bundle.signature
        (True, None)
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
        raise BundleError(f"{name}: the content does not match its revision: the file was changed", hint=_COPY)
    return Bundle(revision, release, wasm, data, modules, len(packed), digest(packed), signature)


def _signature(files: dict[str, bytes], keys: Sequence[VerificationKey] | None) -> Signature | None:
    content = files.pop(SIGNATURES, None)
    if keys is not None:
        from pdp.engine.bundle.signature import verify_signature  # noqa: PLC0415 - only needed to verify

        return verify_signature(content, files, keys)
    if content is None:
        return None
    from pdp.engine.bundle.signature import claimed_signature  # noqa: PLC0415 - only needed for signed bundles

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
    """Read a bundle file, but at most one byte more than the size limit. An unreadable file raises `BundleError`."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BUNDLE + 1)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}", hint="give the path of a bundle file") from error


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
        raise BundleError(f"{name}: must be a JSON object", hint=_REBUILD)
    # Only the canonical form is accepted: the revision covers the parsed value, so two different files with an equal
    # value would have the same revision.
    if canonical(value) != content:
        raise BundleError(f"{name}: not in canonical form (RFC 8785)", hint=_REBUILD)
    return value


def _identity(content: bytes) -> tuple[str, int]:
    manifest = _json(".manifest", content)
    metadata = manifest.get("metadata")
    stated = metadata if isinstance(metadata, dict) else {}
    revision, release, version = manifest.get("revision"), stated.get("release"), stated.get("format")
    if type(version) is not int or version != FORMAT:
        raise BundleError(f".manifest: format {version!r:.20} is not supported, only {FORMAT}", hint=_VERSIONS)
    if (
        type(release) is not int
        or not 1 <= release <= MAX_NUMBER
        or not isinstance(revision, str)
        or content != canonical(_manifest(revision, release))
    ):
        expected = canonical(_manifest("sha256:...", 1)).decode()
        raise BundleError(f".manifest: must be {expected}, with a release of at least 1", hint=_VERSIONS)
    return revision, release


def _data(content: bytes, identity: Mapping[str, Any]) -> dict[str, Any]:
    data = _json("data.json", content)
    for root, value in data.items():
        if root not in DATA_ROOTS:
            raise BundleError(
                f"data.json: the root {root!r:.40} is not allowed; use {', '.join(DATA_ROOTS)}", hint=_REBUILD
            )
        if not isinstance(value, dict):
            raise BundleError(f"data.json: {root} must be a JSON object", hint=_REBUILD)
    for name, document in data.get("manifests", {}).items():
        if name != digest(canonical(document)):
            raise BundleError(f"data.json: manifest {name:.80} does not match its digest", hint=_REBUILD)
    if canonical(data.get("config", {}).get("bundle")) != canonical(identity):
        raise BundleError("data.json: config.bundle does not match revision and release in .manifest", hint=_REBUILD)
    return data


def _module(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text", hint=_REBUILD) from error


def unpack_bundle(packed: bytes) -> dict[str, bytes]:
    """Return a bundle's files, unverified. Raises `BundleError` unless `pack_members` would write the same bytes."""
    content = _gunzip(packed)
    files: dict[str, bytes] = {}
    start = 0
    # Headers are read here, not with `TarFile`: its extensions can turn a few bytes into a file of gigabytes.
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
    # The signature and the revision cover only the contents of files. Building the bundle again also checks links,
    # times, modes and padding.
    if pack_members(files) != packed:
        raise BundleError("the file's layout is not that of `pdp bundle build`: the file was changed", hint=_COPY)
    return files


def pack_members(files: Mapping[str, bytes]) -> bytes:
    """Return the bundle file with these members. Only this layout is accepted when a bundle is read."""
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


# The gzip file is not compressed, because compressed bytes differ between versions of zlib, so equal builds would
# differ.
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
        raise BundleError(f"larger than {MAX_BUNDLE} bytes", hint="check that this is a bundle")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # zlib stops at this limit, so a decompression bomb uses no more memory than the largest bundle.
        content = unpacker.decompress(packed, MAX_BUNDLE + 1)
    except zlib.error as error:
        raise BundleError("damaged, or not a gzip file", hint=_COPY) from error
    if len(content) > MAX_BUNDLE:
        raise BundleError(f"unpacks to more than {MAX_BUNDLE} bytes", hint="check that this is a bundle")
    if not unpacker.eof:
        raise BundleError("the file is truncated" if packed else "the file is empty", hint=_COPY)
    return content


def _check_name(name: str) -> None:
    if name in (".manifest", SIGNATURES, "data.json", "policy.wasm"):
        return
    shown, segments = repr(name[:100]), name.split("/")
    if not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise BundleError(f"{shown} is not a valid path in a bundle", hint=_REBUILD)
    if len(segments) == 1 or segments[0] not in REGO_ROOTS or not name.endswith(".rego"):
        raise BundleError(f"{shown} is not allowed in a bundle", hint=_REBUILD)
