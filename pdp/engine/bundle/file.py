"""The bundle file: how it is laid out, written and read.

A bundle is one gzipped tar for both engines: an OPA server loads it as it is, the embedded engine takes `policy.wasm`.

    .manifest      OPA's: {"revision", "roots", "rego_version": 1, "metadata": {"format": 1, "release"}}
    data.json      the base documents: config, directory, manifests, settings
    policy.wasm    the Rego below, compiled; `.manifest` does not name it, so that OPA ignores it
    .signatures.json   OPA's signature, if it is signed: `pdp.engine.bundle.signature`
    authz/**.rego  the baseline's modules;  custom/**.rego  the user's

The revision is a digest of all of these but itself, the release number and the signature, so whatever was changed or
cut off shows. Who built the bundle, the signature alone says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.container import COPY, MAX_CONTAINER, REBUILD, REGO_ROOTS, pack_members, unpack_bundle
from pdp.engine.bundle.signature import SIGNATURES, claimed_signature, verify_signature
from pdp.errors import BundleError
from pdp.json import MAX_NUMBER, JsonValueError, canonical, digest, parse_json
from pdp.packaged import packaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.keys import VerificationKey
    from pdp.engine.bundle.signature import Signature

FORMAT: Final = 1
"""The layout above. A file of another one is refused."""

MAX_BUNDLE: Final = MAX_CONTAINER
"""Largest bundle in bytes, packed as well as unpacked."""

DATA_ROOTS: Final = ("config", "directory", "manifests", "settings")
"""Where data stands. Data anywhere else could pose as policy, and is refused wherever it comes in."""

ROOTS: Final = tuple(sorted(REGO_ROOTS + DATA_ROOTS))
"""What OPA may take from a bundle."""

_VERSIONS: Final = "bundle and program must be of the same version: update the one or build the other again"


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

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots that hold something, sorted."""
        return tuple(sorted({path.split("/")[0] for path in self.modules} | set(self.data)))


def baseline_bundle_path() -> Path:
    """Return where the released baseline bundle is: packaged beside the code, or in the checkout's `bundles/`.

    Raises:
        BundleError: neither is there.
    """
    path = packaged("bundles/baseline.tar.gz")
    if path is None or not path.is_file():
        raise BundleError(
            "the baseline bundle is not installed",
            hint="install tool-pdp again, or build it in the checkout: scripts/release-bundles",
        )
    return path


def pack_bundle(*, release: int, wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> bytes:
    """Return the bundle's file. The same content gives the same bytes on every machine.

    Args:
        release: see `Bundle`.
        wasm: see `Bundle`.
        data: see `Bundle`; `config.bundle` is filled in.
        modules: see `Bundle`.

    Raises:
        JsonValueError: the data are not JSON.
        BundleError: what was packed cannot be read again: a root, a path or a size that is not admitted.
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
        keys: who is trusted. The bundle must be signed with one of them, and be laid out byte by byte as `pack_bundle`
            does it, so that no byte of it is free. None: a signature is shown and not verified.

    Raises:
        BundleError: not a whole bundle of this version, unchanged since it was built; with `keys`, unsigned or signed
            by somebody else.
    """
    name = "bundle" if isinstance(source, bytes) else str(source)
    try:
        packed = source if isinstance(source, bytes) else _read(source)
        files = unpack_bundle(packed)
        signature = _signature(packed, files, keys)
        revision, release = _identity(_take(files, ".manifest"))
        data = _data(_take(files, "data.json"), {"revision": revision, "release": release})
        wasm = _take(files, "policy.wasm")
        modules = {path: _module(path, content) for path, content in sorted(files.items())}
        _check_revision(revision, wasm, data, modules)
    except BundleError as error:
        raise type(error)(f"{name}: {error.message}", hint=error.hint) from error
    return Bundle(revision, release, wasm, data, modules, len(packed), digest(packed), signature)


def _signature(packed: bytes, files: dict[str, bytes], keys: Sequence[VerificationKey] | None) -> Signature | None:
    """Take the signature out of `files`, verified if there are keys."""
    if keys is None:
        content = files.pop(SIGNATURES, None)
        return None if content is None else claimed_signature(content)
    # OPA's signature is over contents; times, modes and the container's own bytes would be free.
    if pack_members(files) != packed:
        raise BundleError("the file is not laid out as `pdp bundle` writes it: it was changed", hint=COPY)
    return verify_signature(files.pop(SIGNATURES, None), files, keys)


def _manifest(revision: str, release: int) -> dict[str, Any]:
    metadata = {"format": FORMAT, "release": release}
    return {"revision": revision, "roots": list(ROOTS), "rego_version": 1, "metadata": metadata}


def _revision(wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> str:
    config = {key: value for key, value in data.get("config", {}).items() if key != "bundle"}
    contents = {"data.json": canonical({**data, "config": config}), "policy.wasm": wasm}
    contents |= {path: text.encode() for path, text in modules.items()}
    return digest(canonical({path: digest(content) for path, content in contents.items()}))


def _check_revision(revision: str, wasm: bytes, data: Mapping[str, Any], modules: Mapping[str, str]) -> None:
    if _revision(wasm, data, modules) != revision:
        raise BundleError("the content is not what its revision names: it was changed", hint=COPY)


def read_packed(path: Path) -> bytes:
    """Return the bytes of a bundle's file, or of as much of it as `read_bundle` needs to refuse it.

    Raises:
        BundleError: it cannot be read.
    """
    try:
        return _read(path)
    except BundleError as error:
        raise BundleError(f"{path}: {error.message}", hint=error.hint) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BUNDLE + 1)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", hint="name a bundle file") from error


def _take(files: dict[str, bytes], name: str) -> bytes:
    if name not in files:
        raise BundleError(f"{name} is missing", hint=REBUILD)
    return files.pop(name)


def _json(name: str, content: bytes) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except JsonValueError as error:
        raise BundleError(f"{name}: {error}", hint=REBUILD) from error
    if not isinstance(value, dict):
        raise BundleError(f"{name}: not an object", hint=REBUILD)
    return value


def _identity(content: bytes) -> tuple[str, int]:
    manifest = _json(".manifest", content)
    metadata = manifest.get("metadata")
    found = metadata.get("format") if isinstance(metadata, dict) else None
    if type(found) is not int or found != FORMAT:
        shown = "no format that is known" if type(found) is not int else f"format {found}"
        raise BundleError(f".manifest: {shown}, this program reads format {FORMAT}", hint=_VERSIONS)
    revision, release = manifest.get("revision"), metadata.get("release") if isinstance(metadata, dict) else None
    if type(release) is not int or not 1 <= release <= MAX_NUMBER:
        raise BundleError(".manifest: metadata.release is not a number from 1 upwards", hint=REBUILD)
    if not isinstance(revision, str) or canonical(manifest) != canonical(_manifest(revision, release)):
        expected = canonical(_manifest("sha256:...", release)).decode()
        raise BundleError(f".manifest: it must be {expected}", hint=_VERSIONS)
    return revision, release


def _data(content: bytes, identity: Mapping[str, Any]) -> dict[str, Any]:
    data = _json("data.json", content)
    for root, value in data.items():
        if root not in DATA_ROOTS:
            raise BundleError(
                f"data.json: the root {root!r:.40} is not admitted, only {', '.join(DATA_ROOTS)} are", hint=REBUILD
            )
        if not isinstance(value, dict):
            raise BundleError(f"data.json: {root} is not an object", hint=REBUILD)
    for name, document in data.get("manifests", {}).items():
        if name != digest(canonical(document)):
            raise BundleError(f"data.json: manifest {name:.80} is another one than its digest names", hint=REBUILD)
    if canonical(data.get("config", {}).get("bundle")) != canonical(identity):
        raise BundleError("data.json: config.bundle is not the revision and release of .manifest", hint=REBUILD)
    return data


def _module(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 text", hint=REBUILD) from error
