"""Signing a bundle: its files' hashes in a JWT, in OPA's own format (`pdp.engine.bundle.signature`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.engine.bundle.container import pack_members, unpack_bundle
from pdp.engine.bundle.file import read_bundle
from pdp.engine.bundle.signature import SIGNATURES, signatures_file, signed_files
from pdp.json import canonical

if TYPE_CHECKING:
    from pdp.workbench.bundles.keys import SigningKey


def sign_bundle(packed: bytes, key: SigningKey) -> bytes:
    """Return the bundle signed with `key`, in place of any signature that it has.

    RS256 gives the same bytes each time; ES256 gives others each time. Revision and release number stay.

    Raises:
        BundleError: not a whole bundle of this version.
    """
    from joserfc import jws  # noqa: PLC0415 - takes a fifth of a second: only who signs pays for it

    # What is signed must be worth it: never put a signature under something that no engine could use.
    read_bundle(packed)
    files = unsigned_members(packed)
    header = {"alg": key.public.algorithm, "kid": key.public.id}
    token = jws.serialize_compact(
        header, canonical({"files": signed_files(files)}), key.jwk, algorithms=[key.public.algorithm]
    )
    signed = pack_members({**files, SIGNATURES: signatures_file(token)})
    read_bundle(signed, keys=[key.public])
    return signed


def unsigned_bundle(packed: bytes) -> bytes:
    """Return the bundle without its signature: what `build_bundle` writes, byte by byte, to compare with a rebuilt one.

    Raises:
        BundleError: not a gzipped tar of files with a place in a bundle.
    """
    return pack_members(unsigned_members(packed))


def unsigned_members(packed: bytes) -> dict[str, bytes]:
    """Return the members of a bundle by name, without its signature; errors as of `unsigned_bundle`."""
    return {name: content for name, content in unpack_bundle(packed).items() if name != SIGNATURES}
