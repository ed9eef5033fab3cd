"""A bundle's signature, in OPA's own format, and the public keys that verify it.

    .signatures.json   {"signatures": [JWT]}, exactly one
    the JWT            header {"alg", "kid"}, payload {"files": [{"name", "hash", "algorithm": "SHA-256"}]}

Every other file of the bundle is listed. A JSON file is hashed by what it says, anything else by its bytes. Source:
OPA's documentation, "Bundles: Signing", and its `bundle/hash.go`, whose form of JSON is followed letter by letter.

The id of a key is its thumbprint (RFC 7638): both halves of a key have the same id, and nobody has to keep a list.
There is one algorithm, whatever a signature claims: ES256, so keys are P-256.
"""

import hashlib
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.documents import read_bytes
from pdp.engine.bundle import SIGNATURES
from pdp.errors import BundleError, UsageError
from pdp.installed import extra
from pdp.json import canonical, parse_json

KEYS_VARIABLE: Final = "PDP_VERIFICATION_KEYS"  # the environment variable with public keys, one PEM after another
ALGORITHM: Final = "ES256"  # what bundles are signed with

MAX_PEM: Final = 64 * 1024
MAKE_ONE: Final = "make a pair with `pdp bundle keygen`"  # the hint where no usable key is given

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
    """

    id: str
    pem: str
    jwk: Any = field(repr=False, compare=False)


def public_keys(pem: str, name: str) -> tuple[VerificationKey, ...]:
    """Return the public keys in a PEM text, one or more. `name` says where it comes from, for messages.

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
    """Return the public keys in these PEM files, each one once; errors as of `read_pem` and `public_keys`."""
    keys = [key for path in paths for key in public_keys(read_pem(path), str(path))]
    return tuple({key.id: key for key in keys}.values())


def read_pem(path: Path) -> str:
    """Return the text of a file with keys; bytes that no key has are replaced, and shown nowhere."""
    content = read_bytes(path)
    if len(content) > MAX_PEM:  # the time to look for keys grows with the square of it
        raise UsageError(f"{path}: larger than {MAX_PEM} bytes", hint="is this a key?")
    return content.decode("ascii", "replace")


def parse_key(block: str, name: str) -> Any:
    """Return the P-256 key in a PEM block, of either half, as joserfc uses it; UsageError for anything else."""
    with extra("follow"):
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only who has keys needs it
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import ECKey  # noqa: PLC0415

    with suppress(JoseError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        key = ECKey.import_key(block)
        if key.curve_name == "P-256":
            return key
    raise UsageError(f"{name}: not a P-256 key ({ALGORITHM}), or a damaged one", hint=MAKE_ONE)


def public_half(jwk: Any) -> VerificationKey:
    """Return the key that verifies, of a joserfc key of either half."""
    pem = jwk.as_pem(private=False).decode()
    return VerificationKey(jwk.thumbprint(), pem, type(jwk).import_key(pem))


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed, as the signature itself says.

    Attributes:
        verified: whether a key of that id confirmed it and every file is what was signed. Else the rest is a claim.
    """

    key_id: str
    algorithm: str
    verified: bool


def signed_files(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    """Return what a signature says of these files, by name; BundleError where one that must be JSON is not."""
    return [{"name": name, "hash": _hash(name, content), "algorithm": _HASH} for name, content in sorted(files.items())]


def signatures_file(token: str) -> bytes:
    """Return `.signatures.json` with this JWT; the one form of it that is accepted."""
    return canonical({"signatures": [token]})


def claimed_signature(content: bytes) -> tuple[str, Signature]:
    """Return the JWT of a `.signatures.json` and who it says has signed, unverified; BundleError for another format."""
    try:
        (token,) = parse_json(content)["signatures"]
        parts = [urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")]
        # One spelling only: a signature has bits and white space that mean nothing, and a file has but one digest.
        respelled = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()
        is_token = len(parts) == _PARTS and token == respelled and content == signatures_file(token)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_token = False
    if not is_token:
        raise BundleError(f"{SIGNATURES}: not one JWT in OPA's format", hint=_SIGN)
    try:
        header = parse_json(parts[0])
        key_id, algorithm = header["kid"], header["alg"]
    except (ValueError, TypeError, KeyError):
        key_id = algorithm = None
    if not all(type(name) is str and name.isascii() and name.isprintable() for name in (key_id, algorithm)):
        raise BundleError(f"{SIGNATURES}: the signature names no key (kid) or no algorithm (alg)", hint=_SIGN)
    return token, Signature(key_id, algorithm, verified=False)


def verify_signature(content: bytes | None, files: Mapping[str, bytes], keys: Sequence[VerificationKey]) -> Signature:
    """Return who signed a bundle, by its `.signatures.json`, if any, and all its other files, once it is sure.

    BundleError: unsigned, signed with another key, or not what was signed.
    """
    if content is None:
        raise BundleError("not signed", hint=_SIGN)
    token, claimed = claimed_signature(content)
    key = next((key for key in keys if key.id == claimed.key_id), None)
    if key is None:
        known = " or ".join(sorted(key.id for key in keys)) or "one that is trusted"
        raise BundleError(f"signed with the key {claimed.key_id:.80}, not with {known}", hint=_SIGN)
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


def _hash(name: str, content: bytes) -> str:
    if name in _JSON_FILES:
        try:
            # Numbers keep their spelling, as Go keeps it.
            value = json.loads(content, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
            content = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except (ValueError, TypeError, RecursionError) as error:
            raise BundleError(f"{name}: not JSON", hint=_TAMPERED) from error
        content = content.replace("\u2028".encode(), rb"\u2028").replace("\u2029".encode(), rb"\u2029")
    return hashlib.sha256(content).hexdigest()
