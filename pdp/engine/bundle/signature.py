"""A bundle's signature, in OPA's own format, and the public keys that verify it.

    .signatures.json   {"signatures": [JWT]}, exactly one
    the JWT            header {"alg", "kid"}, payload {"files": [{"name", "hash", "algorithm": "SHA-256"}]}

Every other file of the bundle is listed. A JSON file is hashed by what it says, anything else by its bytes. Source:
OPA's documentation, "Bundles: Signing", and its `bundle/hash.go`, whose form of JSON is followed letter by letter.

The id of a key is its thumbprint (RFC 7638): both halves of a key have the same id, and nobody has to keep a list.
There is one algorithm, whatever a signature claims: ES256, so keys are P-256.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import SIGNATURES
from pdp.errors import BundleError, UsageError
from pdp.installed import extra
from pdp.json import JsonValueError, canonical, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

KEYS_VARIABLE: Final = "PDP_VERIFICATION_KEYS"
"""The environment variable with public keys, one PEM after another."""

ALGORITHM: Final = "ES256"
"""What bundles are signed with."""

MAX_PEM: Final = 64 * 1024
"""Largest file with keys, in bytes."""

MAKE_ONE: Final = "make a pair with `pdp bundle keygen`"
"""The hint where no usable key is given."""

_PUBLIC: Final = re.compile(r"-----BEGIN PUBLIC KEY-----\s.+?-----END PUBLIC KEY-----", re.DOTALL)
_JSON_FILES: Final = (".manifest", "data.json")
_HASH: Final = "SHA-256"
_PARTS: Final = 3
_SIGN: Final = "sign it with `pdp bundle sign`, and verify it with the public half of that key"
_TAMPERED: Final = "it was changed after it was signed: take it from its publisher again"


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """The public half of a key.

    Attributes:
        id: RFC 7638 thumbprint of the key; `kid` of the signatures that it verifies.
        pem: the key as `BEGIN PUBLIC KEY` (SPKI), as OPA's configuration takes it.
        jwk: the key as joserfc uses it.
    """

    id: str
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
        raise UsageError(f"{name}: no public key in PEM form (BEGIN PUBLIC KEY)", hint=MAKE_ONE)
    return tuple(public_half(parse_key(block, name)) for block in blocks)


def load_public_keys(paths: Iterable[Path]) -> tuple[VerificationKey, ...]:
    """Return the public keys in these PEM files, each of which may hold several; a key that is there twice counts once.

    Raises:
        UsageError: a file cannot be read, or as of `public_keys`.
    """
    keys = [key for path in paths for key in public_keys(read_pem(path), str(path))]
    return tuple({key.id: key for key in keys}.values())


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
        raise UsageError(f"{path}: not a key in PEM form, which is plain ASCII", hint=MAKE_ONE) from None


def parse_key(block: str, name: str) -> Any:
    """Return the key in a PEM block, of either half, as joserfc uses it.

    Raises:
        UsageError: it cannot be read, or is of another curve than P-256, or of another kind.
    """
    with extra("follow"):
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only who has keys needs it
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            load_pem_private_key,
            load_pem_public_key,
        )
        from joserfc.jwk import ECKey  # noqa: PLC0415

    is_private = "PRIVATE KEY" in block
    try:
        key = load_pem_private_key(block.encode(), None) if is_private else load_pem_public_key(block.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        half = "private" if is_private else "public"
        raise UsageError(f"{name}: a {half} key that cannot be read", hint=MAKE_ONE) from None
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return ECKey.import_key(block)
    raise UsageError(f"{name}: not a P-256 key ({ALGORITHM})", hint=MAKE_ONE)


def public_half(jwk: Any) -> VerificationKey:
    """Return the key that verifies, of a joserfc key of either half."""
    pem = jwk.as_pem(private=False).decode()
    return VerificationKey(jwk.thumbprint(), pem, type(jwk).import_key(pem))


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed, as the signature itself says.

    Attributes:
        key_id: thumbprint of the key.
        algorithm: such as `ES256`.
        verified: whether a key of that id confirmed it and every file is what was signed. Else the rest is a claim.
    """

    key_id: str
    algorithm: str
    verified: bool


def signed_files(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    """Return what a signature says of these files, sorted by name: name, hash in hexadecimal digits, algorithm.

    Raises:
        BundleError: not JSON where it must be.
    """
    return [{"name": name, "hash": _hash(name, content), "algorithm": _HASH} for name, content in sorted(files.items())]


def signatures_file(token: str) -> bytes:
    """Return `.signatures.json` with this JWT; the one form of it that is accepted."""
    return canonical({"signatures": [token]})


def claimed_signature(content: bytes) -> Signature:
    """Return who a `.signatures.json` says to have signed; nothing of it is verified.

    Raises:
        BundleError: it has not the format above.
    """
    header = _header(_token(content))
    return Signature(header["kid"], header["alg"], verified=False)


def verify_signature(content: bytes | None, files: Mapping[str, bytes], keys: Sequence[VerificationKey]) -> Signature:
    """Return who signed a bundle, once it is sure.

    Args:
        content: its `.signatures.json`, None when it has none.
        files: all its other files by name.
        keys: those that are trusted. The one that the signature names is asked.

    Raises:
        BundleError: unsigned, signed with another key, or not what was signed.
    """
    if content is None:
        raise BundleError("not signed", hint=_SIGN)
    token = _token(content)
    header = _header(token)
    key = next((key for key in keys if key.id == header["kid"]), None)
    if key is None:
        known = " or ".join(sorted(key.id for key in keys)) or "one that is trusted"
        raise BundleError(f"signed with the key {header['kid']:.80}, not with {known}", hint=_SIGN)
    listed = _payload(token, key)
    if canonical(listed) != canonical(signed_files(files)):
        raise BundleError(f"the files are not those that {SIGNATURES} lists", hint=_TAMPERED)
    return Signature(key.id, ALGORITHM, verified=True)


def _payload(token: str, key: VerificationKey) -> Any:
    with extra("follow"):
        from joserfc import jws  # noqa: PLC0415 - takes a fifth of a second
        from joserfc.errors import JoseError  # noqa: PLC0415

    try:
        signed = jws.deserialize_compact(token, key.jwk, algorithms=[ALGORITHM])
        payload = parse_json(signed.payload)
    except (JoseError, ValueError) as error:
        raise BundleError(f"the signature is not one of the key {key.id}", hint=_TAMPERED) from error
    # A scope is a demand of OPA's that a verifier must meet; whoever signed with one meant another use.
    if not isinstance(payload, dict) or "files" not in payload or payload.get("scope"):
        raise BundleError("the signature does not list files, or is for another scope", hint=_SIGN)
    return payload["files"]


def _token(content: bytes) -> str:
    try:
        document = parse_json(content)
        (token,) = document["signatures"]
        # One spelling only: a signature has bits and white space that mean nothing, and a file has but one digest.
        if type(token) is str and content == signatures_file(token) and token == _respelled(token):
            return token
    except (JsonValueError, ValueError, TypeError, KeyError):
        pass
    raise BundleError(f"{SIGNATURES}: not one JWT in OPA's format", hint=_SIGN)


def _respelled(token: str) -> str:
    parts = token.split(".")
    if len(parts) != _PARTS:
        return ""
    return ".".join(
        urlsafe_b64encode(urlsafe_b64decode(part + "=" * (-len(part) % 4))).rstrip(b"=").decode() for part in parts
    )


def _header(token: str) -> dict[str, str]:
    part = token.split(".", maxsplit=1)[0]
    try:
        header = parse_json(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        names = {"kid": header["kid"], "alg": header["alg"]}
    except (JsonValueError, ValueError, TypeError, KeyError):
        names = {}
    if not names or not all(type(name) is str and name.isascii() and name.isprintable() for name in names.values()):
        raise BundleError(f"{SIGNATURES}: the signature names no key (kid) or no algorithm (alg)", hint=_SIGN)
    return names


def _hash(name: str, content: bytes) -> str:
    if name in _JSON_FILES:
        try:
            # Numbers keep their spelling, as Go keeps it.
            value = json.loads(content, parse_int=_Number, parse_float=_Number)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{name}: not JSON", hint=_TAMPERED) from error
        content = _as_go(value).encode()
    return hashlib.sha256(content).hexdigest()


class _Number(str):
    """A number as the file spells it."""

    __slots__ = ()


def _as_go(value: Any) -> str:
    """Return JSON as Go's encoder writes it without escaping HTML: keys sorted by code point, no white space."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_as_go(key)}:{_as_go(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_go, value)) + "]"
    if isinstance(value, _Number):
        return str(value)
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
