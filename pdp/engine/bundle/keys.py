"""The public keys that bundles are verified by: PEM in, a key with its id and algorithm out.

The id of a key is its thumbprint (RFC 7638): both halves of a key tell the same id, and nobody has to keep a list. The
algorithm follows from the key, never from what a signature claims: P-256 is ES256, RSA is RS256.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pdp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEYS_VARIABLE: Final = "PDP_VERIFICATION_KEYS"
"""The environment variable with public keys, one PEM after another."""

Algorithm = Literal["ES256", "RS256"]
"""What bundles are signed with; OPA knows both."""

LEAST_RSA: Final = 2048
"""Shortest RSA key that is admitted, in bits."""

MAX_PEM: Final = 64 * 1024
"""Largest file with keys, in bytes."""

_PUBLIC: Final = re.compile(r"-----BEGIN PUBLIC KEY-----\s.+?-----END PUBLIC KEY-----", re.DOTALL)
_MAKE_ONE: Final = "make a pair with `pdp bundle keygen`"


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """The public half of a key.

    Attributes:
        id: RFC 7638 thumbprint of the key; `kid` of the signatures that it verifies.
        algorithm: follows from the kind of key.
        pem: the key as `BEGIN PUBLIC KEY` (SPKI), as OPA's configuration takes it.
        jwk: the key as joserfc uses it.
    """

    id: str
    algorithm: Algorithm
    pem: str
    jwk: Any = field(repr=False, compare=False)


def public_keys(pem: str, name: str) -> tuple[VerificationKey, ...]:
    """Return the public keys in a PEM text, one or more. `name` says where it comes from, for messages.

    Raises:
        UsageError: no public key, a private one, or one that cannot be read, is too short or of another kind.
    """
    if "PRIVATE KEY" in pem:
        raise UsageError(
            f"{name}: holds a private key", hint="verify with the public half, which `pdp bundle keygen` names .pub"
        )
    blocks = _PUBLIC.findall(pem)
    if not blocks:
        raise UsageError(f"{name}: no public key in PEM form (BEGIN PUBLIC KEY)", hint=_MAKE_ONE)
    return tuple(_public_key(block, name) for block in blocks)


def load_public_keys(paths: Iterable[Path]) -> tuple[VerificationKey, ...]:
    """Return the public keys in these PEM files, each of which may hold several; a key that is there twice counts once.

    Raises:
        UsageError: a file cannot be read, or as of `public_keys`.
    """
    found = [key for path in paths for key in public_keys(read_pem(path), str(path))]
    return tuple({key.id: key for key in found}.values())


def read_pem(path: Path) -> str:
    """Return the text of a file with keys.

    Raises:
        UsageError: it cannot be read, is too large or no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PEM + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}", hint="name a file with a key in PEM form"
        ) from None
    if len(content) > MAX_PEM:
        raise UsageError(f"{path}: larger than {MAX_PEM} bytes", hint="is this a key?")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a key in PEM form, which is plain ASCII", hint=_MAKE_ONE) from None


def algorithm_of(key: Any, name: str) -> Algorithm:
    """Return what a key of the package cryptography, of either half, signs with.

    Raises:
        UsageError: RSA below 2048 bits, another curve than P-256, or another kind of key.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - only who has keys pays for it

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < LEAST_RSA:
            raise UsageError(
                f"{name}: an RSA key of {key.key_size} bits; at least {LEAST_RSA} are needed", hint=_MAKE_ONE
            )
        return "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return "ES256"
    raise UsageError(f"{name}: neither a P-256 key (ES256) nor an RSA key (RS256)", hint=_MAKE_ONE)


def _public_key(block: str, name: str) -> VerificationKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        loaded = load_pem_public_key(block.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{name}: a public key that cannot be read", hint=_MAKE_ONE) from None
    return public_half(loaded, algorithm_of(loaded, name))


def public_half(loaded: Any, algorithm: Algorithm) -> VerificationKey:
    """Return the key that verifies, of a public key of the package cryptography and its algorithm."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415
    from joserfc.jwk import ECKey, RSAKey  # noqa: PLC0415

    pem = loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    jwk = ECKey.import_key(pem) if algorithm == "ES256" else RSAKey.import_key(pem)
    return VerificationKey(jwk.thumbprint(), algorithm, pem, jwk)
