"""Signing a bundle in OPA's own format, and private keys: made, written for their owner only, and read again."""

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
"""The environment variable with a private key, as PEM."""

PUBLIC_SUFFIX: Final = ".pub"
"""Added to a private key's file name for its public half."""

_PRIVATE: Final = re.compile(r"-----BEGIN ((?:EC )?PRIVATE KEY)-----\s.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key as joserfc has it, which is shown nowhere, and its public half with the id."""

    public: VerificationKey
    jwk: Any = field(repr=False, compare=False)


def generate_key(out: Path) -> VerificationKey:
    """Make a key, write it to `out` (PKCS 8, mode 0600) and its public half to `out`.pub (SPKI), and return the latter.

    UsageError: one of the files is there already, or cannot be written. Neither is left behind then.
    """
    with extra("follow"):
        from joserfc.jwk import ECKey  # noqa: PLC0415 - only who makes a key needs it

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
    """Return the private key in a PEM file.

    UsageError: it cannot be read, others than its owner may read it, or as of `signing_key`.
    """
    key = signing_key(read_pem(path), str(path))
    # Last: nobody is told to close a folder or a public key to others.
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"{path}: a private key that others may use (mode {mode:04o})", hint=f"run: chmod 600 {path}"
            )
    return key


def signing_key(pem: str, name: str) -> SigningKey:
    """Return the private key in a PEM text. `name` says where it comes from, for messages; the key is in none of them.

    UsageError: no private key, more than one, an encrypted one, or one that is too short or of another kind.
    """
    if "ENCRYPTED" in pem:
        raise UsageError(
            f"{name}: the private key is encrypted",
            hint=f"decrypt it in the place that signs, and hand it over in {SIGNING_VARIABLE}",
        )
    blocks = [match.group() for match in _PRIVATE.finditer(pem)]
    if len(blocks) != 1:
        count = "no private key" if not blocks else f"{len(blocks)} private keys"
        raise UsageError(f"{name}: {count} in PEM form, one is needed", hint=MAKE_ONE)
    jwk = parse_key(blocks[0], name)
    return SigningKey(public_half(jwk), jwk)


def sign_bundle(packed: bytes, key: SigningKey) -> bytes:
    """Return the bundle signed with `key`, in place of any signature that it has.

    ES256 gives other bytes each time. Revision and release number stay.

    BundleError: not a whole bundle of this version.
    """
    with extra("follow"):
        from joserfc import jws  # noqa: PLC0415 - only who signs needs it

    files = {name: content for name, content in unpack_bundle(packed).items() if name != SIGNATURES}
    header = {"alg": ALGORITHM, "kid": key.public.id}
    token = jws.serialize_compact(header, canonical({"files": signed_files(files)}), key.jwk, algorithms=[ALGORITHM])
    signed = pack_members({**files, SIGNATURES: signatures_file(token)})
    # What is signed must be worth it: nobody is given a signature under something that no engine could use.
    read_bundle(signed, keys=[key.public])
    return signed


def _write_new(path: Path, content: bytes, mode: int) -> None:
    made = False
    try:
        # Made with its mode: at no time may others read it. Never over a key that is there, which may be the only copy.
        with open(path, "xb", opener=partial(os.open, mode=mode)) as file:
            made = True
            file.write(content)
    except FileExistsError:
        raise UsageError(f"{path}: there already", hint="name another file; a key is never overwritten") from None
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        hint = "name a file in a folder of yours, and check the disk's space"
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error
