"""Sign bundles in OPA's signature format; generate, store and read private keys."""

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pdp.engine.bundle import SIGNATURES
from pdp.engine.bundle.file import pack_members, read_bundle, unpack_bundle
from pdp.engine.bundle.signature import (
    ALGORITHM,
    MAKE_ONE,
    VerificationKey,
    parse_key,
    public_half,
    read_pem,
    signatures_file,
    signed_files,
)
from pdp.errors import UsageError
from pdp.installed import extra
from pdp.json import canonical

SIGNING_VARIABLE: Final = "PDP_SIGNING_KEY"
"""The name of the environment variable with a private key in PEM format."""

PUBLIC_SUFFIX: Final = ".pub"

_PRIVATE: Final = re.compile(r"-----BEGIN ((?:EC )?PRIVATE KEY)-----\s.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key (`jwk`, a joserfc key that `repr` does not show) with its public key."""

    public: VerificationKey
    jwk: Any = field(repr=False, compare=False)


def generate_key(out: Path) -> VerificationKey:
    """Generate a key pair, write the private key to `out` and the public key to `out`.pub, and return the public key.

    The private key is PKCS 8 with mode 0600, the public key SPKI. If an error occurs, neither file remains.
    """
    with extra("follow"):
        from joserfc.jwk import ECKey  # noqa: PLC0415 - only needed to generate a key

    jwk = ECKey.generate_key("P-256")
    public, private = public_half(jwk), jwk.as_pem(private=True)
    public_file = out.with_name(out.name + PUBLIC_SUFFIX)
    _write_new(out, private, 0o600)
    try:
        _write_new(public_file, public.pem.encode(), 0o644)
    except UsageError:
        out.unlink(missing_ok=True)
        raise
    return public


def load_signing_key(path: Path) -> SigningKey:
    """Return the private key from a PEM file. A file that other users can read is an error."""
    key = signing_key(read_pem(path), str(path))
    # The file's mode is checked last, so that the hint to run chmod is not given for a folder or a public key.
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"{path}: other users may read this private key (mode {mode:04o})", hint=f"run: chmod 600 {path}"
            )
    return key


def signing_key(pem: str, name: str) -> SigningKey:
    """Return the private key from PEM text. Error messages show `name`, the source of the text, and never the key."""
    if "ENCRYPTED" in pem:
        raise UsageError(
            f"{name}: the private key is encrypted",
            hint=f"decrypt it on the machine that signs, and pass it in {SIGNING_VARIABLE}",
        )
    blocks = [match.group() for match in _PRIVATE.finditer(pem)]
    if len(blocks) != 1:
        found = "none" if not blocks else len(blocks)
        raise UsageError(f"{name}: expected one private key in PEM form, found {found}", hint=MAKE_ONE)
    jwk = parse_key(blocks[0], name)
    return SigningKey(public_half(jwk), jwk)


def sign_bundle(packed: bytes, key: SigningKey) -> bytes:
    """Return the bundle signed with `key`; a signature that the bundle already has is replaced.

    Two signatures of one bundle differ, because ES256 is randomized. Signing keeps the revision and the release number.
    """
    with extra("follow"):
        from joserfc import jws  # noqa: PLC0415 - only needed to sign

    files = {name: content for name, content in unpack_bundle(packed).items() if name != SIGNATURES}
    header = {"alg": ALGORITHM, "kid": key.public.id}
    token = jws.serialize_compact(header, canonical({"files": signed_files(files)}), key.jwk, algorithms=[ALGORITHM])
    signed = pack_members({**files, SIGNATURES: signatures_file(token)})
    # The signed bundle is read again, to check that engines can load it.
    read_bundle(signed, keys=[key.public])
    return signed


def _write_new(path: Path, content: bytes, mode: int) -> None:
    made = False
    try:
        # The file is created with its final permissions, so that other users can never read it. "x" keeps an existing
        # key, which may be the only copy.
        with open(path, "xb", opener=partial(os.open, mode=mode)) as file:
            made = True
            file.write(content)
    except FileExistsError:
        raise UsageError(
            f"{path}: the file exists", hint="choose another file, because a key is never overwritten"
        ) from None
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        hint = "choose a writable folder, and check the disk space"
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error
