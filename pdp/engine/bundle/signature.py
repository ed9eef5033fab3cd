"""A bundle's signature, in OPA's own format, so that `opa run --verification-key` takes what we sign.

    .signatures.json   {"signatures": [JWT]}, exactly one
    the JWT            header {"alg", "kid"}, payload {"files": [{"name", "hash", "algorithm": "SHA-256"}]}

Every other file of the bundle is listed. A JSON file is hashed by what it says, anything else by its bytes. Source:
OPA's documentation, "Bundles: Signing", and its `bundle/hash.go`, whose form of JSON is followed letter by letter.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import BundleError
from pdp.json import JsonValueError, canonical, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.engine.bundle.keys import VerificationKey

SIGNATURES: Final = ".signatures.json"
"""The member of a bundle that holds its signature."""

_JSON_FILES: Final = (".manifest", "data.json")
_ALGORITHM: Final = "SHA-256"
_PARTS: Final = 3
_SIGN: Final = "sign it with `pdp bundle sign`, and verify it with the public half of that key"
_TAMPERED: Final = "it was changed after it was signed: take it from its publisher again"


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
        BundleError: a JSON file that is none.
    """
    return [
        {"name": name, "hash": _hash(name, content), "algorithm": _ALGORITHM} for name, content in sorted(files.items())
    ]


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
        keys: those that are trusted. The one that the signature names is asked, with its own algorithm.

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
    if not hmac.compare_digest(canonical(listed), canonical(signed_files(files))):
        raise BundleError(f"the files are not those that {SIGNATURES} lists", hint=_TAMPERED)
    return Signature(key.id, key.algorithm, verified=True)


def _payload(token: str, key: VerificationKey) -> Any:
    from joserfc import jws  # noqa: PLC0415 - takes a fifth of a second: only who has keys pays for it
    from joserfc.errors import JoseError  # noqa: PLC0415

    try:
        signed = jws.deserialize_compact(token, key.jwk, algorithms=[key.algorithm])
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
        found = {"kid": header["kid"], "alg": header["alg"]}
    except (JsonValueError, ValueError, TypeError, KeyError):
        found = {}
    if not found or not all(type(value) is str and value.isascii() and value.isprintable() for value in found.values()):
        raise BundleError(f"{SIGNATURES}: the signature names no key (kid) or no algorithm (alg)", hint=_SIGN)
    return found


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
