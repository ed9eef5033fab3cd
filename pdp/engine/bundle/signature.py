"""A bundle's signature in OPA's format, and the public keys that verify it.

    .signatures.json   {"signatures": [JWT]}, exactly one
    the JWT            header {"alg", "kid"}, payload {"files": [{"name", "hash", "algorithm": "SHA-256"}]}

The payload lists all files of the bundle except the signature. A JSON file is hashed by its value, other files by their
bytes. Source: OPA's documentation, "Bundles: Signing", and `bundle/hash.go`, whose JSON format is reproduced exactly.

The id of a key is its thumbprint (RFC 7638), so the private and the public key have the same id and no list of ids is
needed. Keys must be P-256, because the only accepted algorithm is ES256, even if a signature claims another algorithm.
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

# the environment variable with the public keys as concatenated PEM texts
KEYS_VARIABLE: Final = "PDP_VERIFICATION_KEYS"
ALGORITHM: Final = "ES256"  # the algorithm of bundle signatures

MAX_PEM: Final = 64 * 1024
MAKE_ONE: Final = "make a pair with `pdp bundle keygen`"  # the hint that is shown if no usable key is given

_PUBLIC: Final = re.compile(r"-----BEGIN PUBLIC KEY-----\s.+?-----END PUBLIC KEY-----", re.DOTALL)
_JSON_FILES: Final = (".manifest", "data.json")
_HASH: Final = "SHA-256"
_PARTS: Final = 3
_SIGN: Final = "sign the bundle with `pdp bundle sign`, and verify it with the public key of the same pair"
_TAMPERED: Final = "the bundle was changed after it was signed: get it from its publisher again"


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """The public half of a signing key. `id` is its thumbprint (RFC 7638), `pem` its text (SPKI) for OPA's settings."""

    id: str
    pem: str
    jwk: Any = field(repr=False, compare=False)


def public_keys(pem: str, name: str) -> tuple[VerificationKey, ...]:
    """Return the public keys in a PEM text. Raises `UsageError`, naming `name`, if there is none, or a private key."""
    if "PRIVATE KEY" in pem:
        raise UsageError(
            f"{name}: is a private key, expected a public key",
            hint="give the public key, the file that `pdp bundle keygen` names .pub",
        )
    blocks = _PUBLIC.findall(pem)
    if not blocks:
        raise UsageError(f"{name}: no public key found, expected PEM text (BEGIN PUBLIC KEY)", hint=MAKE_ONE)
    return tuple(public_half(parse_key(block, name)) for block in blocks)


def load_public_keys(paths: Iterable[Path]) -> tuple[VerificationKey, ...]:
    """Return the public keys in PEM files, without duplicates.

    Args:
        paths: the files, such as the `.pub` file of `pdp bundle keygen`; each may contain several keys.

    Raises:
        UsageError: a file cannot be read, has no public key, or has a private key.
        MissingExtraError: the extra `follow` is not installed.

    Examples:
        >>> load_public_keys([Path("release.pub")])  # doctest: +SKIP
        (VerificationKey(id='...'),)
        >>> load_public_keys([])
        ()
    """
    keys = [key for path in paths for key in public_keys(read_pem(path), str(path))]
    return tuple({key.id: key for key in keys}.values())


def read_pem(path: Path) -> str:
    """Return the text of a key file, with non-ASCII bytes replaced. Messages must not quote the text."""
    content = read_bytes(path)
    # the size of a key file is limited, because the search for keys takes time that grows with its square
    if len(content) > MAX_PEM:
        raise UsageError(f"{path}: larger than {MAX_PEM} bytes, expected a key", hint="give a PEM file")
    return content.decode("ascii", "replace")


def parse_key(block: str, name: str) -> Any:
    """Return the public or private P-256 key in a PEM block, as a joserfc key."""
    with extra("follow"):
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only needed with keys
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import ECKey  # noqa: PLC0415

    with suppress(JoseError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        key = ECKey.import_key(block)
        if key.curve_name == "P-256":
            return key
    raise UsageError(
        f"{name}: the key is damaged or of another type, expected a P-256 key ({ALGORITHM}) in PEM form", hint=MAKE_ONE
    )


def public_half(jwk: Any) -> VerificationKey:
    """Return the verification key that belongs to a public or private joserfc key."""
    pem = jwk.as_pem(private=False).decode()
    return VerificationKey(jwk.thumbprint(), pem, type(jwk).import_key(pem))


@dataclass(frozen=True, slots=True)
class Signature:
    """The signer that a signature claims. Only `verified` proves the signer: a trusted key has verified all files."""

    key_id: str
    algorithm: str
    verified: bool


def signed_files(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    """Return the list of files for a signature's payload, by name. Raises `BundleError` if a JSON file is invalid."""
    return [{"name": name, "hash": _hash(name, content), "algorithm": _HASH} for name, content in sorted(files.items())]


def signatures_file(token: str) -> bytes:
    """Return the content of `.signatures.json` with this JWT, in the only layout that is accepted."""
    return canonical({"signatures": [token]})


def claimed_signature(content: bytes) -> tuple[str, Signature]:
    """Return the JWT in a `.signatures.json` and its claimed signer, unverified. Raises `BundleError` if malformed."""
    try:
        (token,) = parse_json(content)["signatures"]
        parts = [urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")]
        # Base64 and JSON can represent one signature by several texts. Only one text is accepted, so that a signed
        # bundle has only one digest.
        respelled = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts).decode()
        is_token = len(parts) == _PARTS and token == respelled and content == signatures_file(token)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_token = False
    if not is_token:
        raise BundleError(f"{SIGNATURES}: must hold exactly one JWT in OPA's format", hint=_SIGN)
    try:
        header = parse_json(parts[0])
        key_id, algorithm = header["kid"], header["alg"]
    except (ValueError, TypeError, KeyError):
        key_id = algorithm = None
    if not all(type(name) is str and name.isascii() and name.isprintable() for name in (key_id, algorithm)):
        raise BundleError(f"{SIGNATURES}: the signature names no key (kid) or no algorithm (alg)", hint=_SIGN)
    return token, Signature(key_id, algorithm, verified=False)


def verify_signature(content: bytes | None, files: Mapping[str, bytes], keys: Sequence[VerificationKey]) -> Signature:
    """Verify and return a bundle's signature over its files. Raises `BundleError` unless a key of `keys` made it."""
    if content is None:
        raise BundleError("not signed", hint=_SIGN)
    token, claimed = claimed_signature(content)
    key = next((key for key in keys if key.id == claimed.key_id), None)
    if key is None:
        known = " or ".join(sorted(key.id for key in keys)) or "a trusted key"
        raise BundleError(f"signed with the key {claimed.key_id:.80}, not with {known}", hint=_SIGN)
    listed = _payload(token, key)
    if canonical(listed) != canonical(signed_files(files)):
        raise BundleError(f"the files differ from those in {SIGNATURES}", hint=_TAMPERED)
    return Signature(key.id, ALGORITHM, verified=True)


def _payload(token: str, key: VerificationKey) -> Any:
    with extra("follow"):
        from joserfc import jws  # noqa: PLC0415 - takes 0.2 s to import
        from joserfc.errors import JoseError  # noqa: PLC0415

    try:
        signed = jws.deserialize_compact(token, key.jwk, algorithms=[ALGORITHM])
        payload = parse_json(signed.payload)
    except (JoseError, ValueError) as error:
        raise BundleError(f"the signature was not made with the key {key.id}", hint=_TAMPERED) from error
    # OPA requires the verifier to check the scope. Bundles have none, so a signature with a scope was made for another
    # use.
    if not isinstance(payload, dict) or "files" not in payload or payload.get("scope"):
        raise BundleError("the signature lists no files, or has a scope", hint=_SIGN)
    return payload["files"]


def _hash(name: str, content: bytes) -> str:
    if name in _JSON_FILES:
        try:
            # The digits of numbers are kept as written, because OPA, which is written in Go, keeps them too.
            value = json.loads(content, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
            content = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except (ValueError, TypeError, RecursionError) as error:
            raise BundleError(f"{name}: not JSON", hint=_TAMPERED) from error
        content = content.replace("\u2028".encode(), rb"\u2028").replace("\u2029".encode(), rb"\u2029")
    return hashlib.sha256(content).hexdigest()
