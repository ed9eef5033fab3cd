"""OpenID Connect access tokens. A JWT is verified with the provider's published keys, not with a key in the JWT."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import httpx
from joserfc import jws
from joserfc.errors import ClaimError, JoseError, MissingClaimError
from joserfc.jwk import JWKRegistry
from joserfc.jwt import JWTClaimsRegistry

from pdp.errors import UsageError
from pdp.json import canonical, parse_json, pointer_steps
from pdp.service.errors import HttpError
from pdp.service.security.principal import NOTED, Principal
from pdp.service.settings import OidcSettings
from pdp.session import Session

LEEWAY: Final = 30
"""The accepted difference between the clocks of this machine and the provider, in seconds."""

_LONGEST_TOKEN: Final = 16 * 1024
_LONGEST_ANSWER: Final = 256 * 1024
_ANSWER_SECONDS: Final = 5
_KEYS_SECONDS: Final = 600  # Keys are fetched again after this many seconds, so that a withdrawn key stops working.
_KEYS_LAST_SECONDS: Final = 24 * 3600  # If the provider does not answer, old keys are used for this many seconds.
_PAUSE_SECONDS: Final = 30  # The minimum number of seconds between two fetches, even if tokens name unknown keys.
_PAUSE_AFTER_FAILURE_SECONDS: Final = 5
_HEADER: Final = frozenset(("alg", "kid", "typ", "x5t", "x5t#S256"))
_TYPES: Final = ("at+jwt", "application/at+jwt", "jwt", "")  # Okta leaves the type out.
_ID_TOKEN_TYPES: Final = ("jwt", "")  # The type of an ID token may be absent.
_SHOWN: Final = re.compile(r"[\w.:/+=-]{1,64}", re.ASCII)  # The log shows no other values of a token's header.
_REASONS: Final = {"aud": "wrong_audience", "exp": "expired", "iat": "clock", "nbf": "clock"}
_IDENTITY: Final = ("sub", "iss", "jti", "azp", "client_id", "sid", "act")

_log = logging.getLogger("pdp.service")


class OidcAuthenticator:
    """Authenticates the tokens of one provider for one audience."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self.keys = _ProviderKeys(settings)

    async def principal(self, token: str) -> Principal | None:
        """Return the holder of a token, None if the token is invalid. Raise `HttpError` 503 if keys are unavailable."""
        claims = await self._verified(token, self.settings.audience, _TYPES)
        try:
            return None if claims is None else self._principal(claims)
        except (UsageError, ValueError) as error:
            about = {"reason": "invalid_claim", "issuer": self.settings.issuer, "detail": str(error)}
            NOTED.get([]).append(about)
            return None

    async def id_claims(self, token: str, client_id: str) -> dict[str, Any] | None:
        """Return the claims of an ID token for this client, None if the token is invalid. Raise `HttpError` 503."""
        return await self._verified(token, client_id, _ID_TOKEN_TYPES)

    async def _verified(self, token: str, audience: str, types: Sequence[str]) -> dict[str, Any] | None:
        about: dict[str, Any] = {"reason": "malformed"}  # Before each step, the reason to refuse the token if it fails.
        try:
            if len(token) > _LONGEST_TOKEN:
                return None
            signed = jws.extract_compact(token.encode("ascii"))
            claims, header = parse_json(signed.payload), signed.headers()
            about["reason"] = "wrong_issuer"
            # The issuer is checked before the keys are fetched, so that tokens of other issuers cause no requests.
            if not (isinstance(claims, dict) and claims.get("iss") == self.settings.issuer):
                return None
            about |= {name: header[name] for name in ("typ", "kid") if _SHOWN.fullmatch(str(header.get(name, "")))}
            about |= {"reason": "wrong_header", "issuer": self.settings.issuer}
            is_typed = str(header.get("typ", "")).lower() in types
            if not (is_typed and _HEADER.issuperset(header) and isinstance(header.get("kid"), str)):
                return None
            about["reason"] = "provider_down"
            key = await self.keys.key(header["kid"])
            about["reason"] = "unknown_key" if key is None else "bad_signature"
            if key is None or not jws.validate_compact(signed, key, self.settings.algorithms):
                return None
            about |= {"reason": "invalid_claim", "exp": claims.get("exp")}
            rules: dict[str, Any] = {name: {"essential": True} for name in ("exp", "iat", "sub")}
            rules["iss"] = {"essential": True, "value": self.settings.issuer}
            rules["aud"] = {"essential": True, "value": audience}
            JWTClaimsRegistry(leeway=LEEWAY, **rules).validate(claims)
        except ClaimError as error:
            reason = None if isinstance(error, MissingClaimError) else _REASONS.get(error.claim)
            about |= {"reason": reason or "invalid_claim", "claim": error.claim}
        except (JoseError, ValueError):
            pass
        else:
            about.clear()
            return claims
        finally:
            if about:
                NOTED.get([]).append(about)
        return None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        mapped = {name: _claim_of(claims, source) for name, source in self.settings.claims.items()}
        mapped |= {name: claims.get(name) for name in _IDENTITY}
        session = Session.read({"claims": {name: value for name, value in mapped.items() if value is not None}})
        _ = session.subject  # Reading the subject raises an error if the subject may be confused with another.
        tenant = self.settings.tenant
        stated = claims.get("scope", claims.get("scp"))
        named = stated.split(" ") if isinstance(stated, str) else stated if isinstance(stated, list) else []
        scope_names = tuple(name for name in self.settings.scopes if name in named)
        return Principal(
            # The principal's id depends on the client, so that one client of a person cannot finish the calls of
            # another.
            canonical(
                [tenant, claims["iss"], claims["sub"], str(claims.get("azp") or claims.get("client_id"))]
            ).decode(),
            tenant,
            frozenset(scope for name in scope_names for scope in self.settings.scopes[name]),
            session.claims,
            expires_at=claims["exp"] + LEEWAY,
            provider=self.settings.key,
            scope_names=scope_names,
        )


class _ProviderKeys:
    """The public keys of a provider by id, fetched again when they are old or a token names an unknown key."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._not_before = float("-inf")
        self._fetching = asyncio.Lock()

    async def key(self, kid: str) -> Any:
        """Return the key with this id, or None. Raise `HttpError` 503 if the provider's keys cannot be fetched."""
        is_old = time.monotonic() > self._fetched_at + _KEYS_SECONDS
        # Requests with a known key do not wait while the keys are fetched again.
        if (kid not in self._keys) if self._fetching.locked() else (is_old or kid not in self._keys):
            async with self._fetching:
                await self._refresh(kid)
        if time.monotonic() > self._fetched_at + _KEYS_LAST_SECONDS:
            raise HttpError(
                503,
                "the keys of the identity provider are unavailable",
                hint="try again",
                headers={"Retry-After": "5"},
            )
        return self._keys.get(kid)

    async def are_current(self) -> bool:
        """Fetch the keys if they are old, and return whether they are current now."""
        async with self._fetching:
            await self._refresh(next(iter(self._keys), ""))
        return time.monotonic() <= self._fetched_at + _KEYS_SECONDS

    async def _refresh(self, kid: str) -> None:
        now = time.monotonic()
        is_current = kid in self._keys and now <= self._fetched_at + _KEYS_SECONDS
        if is_current or now < self._not_before:
            return
        try:
            self._keys = await provider_keys(self._settings)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            _log.error("the keys of %s cannot be read: %s", self._settings.issuer, str(error) or type(error).__name__)
            # The pause between fetches starts now, so that waiting requests fail at once instead of fetching one after
            # another.
            self._not_before = time.monotonic() + _PAUSE_AFTER_FAILURE_SECONDS
        else:
            self._fetched_at, self._not_before = now, now + _PAUSE_SECONDS


@asynccontextmanager
async def provider_client() -> AsyncIterator[httpx.AsyncClient]:
    """Open a client for a provider. All requests together may take five seconds, else it raises TimeoutError."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS), httpx.AsyncClient(timeout=None) as client:  # noqa: S113 - bounded
            yield client
    except TimeoutError:
        raise TimeoutError(f"no whole answer within {_ANSWER_SECONDS} s") from None


async def json_document(request: AbstractAsyncContextManager[httpx.Response]) -> dict[str, Any]:
    """Return the JSON object that answers a streamed request. Raise ValueError for a redirect or any other answer."""
    body = bytearray()
    async with request as response:
        url = response.url
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answered {response.status_code}")
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _LONGEST_ANSWER:
                raise ValueError(f"{url} sent an answer of more than {_LONGEST_ANSWER} bytes")
    document = parse_json(bytes(body))
    if not isinstance(document, dict):
        raise ValueError(f"{url} sent an answer that is not a JSON object")  # noqa: TRY004 - ValueError like the other faults
    return document


async def provider_keys(settings: OidcSettings) -> dict[str, Any]:
    """Return the well-formed keys of a provider by id. A key's purpose is checked when the key is used."""
    async with provider_client() as client:
        document = await json_document(client.stream("GET", settings.jwks_url))
    keys: dict[str, Any] = {}
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("the key set has no list `keys`")  # noqa: TRY004 - ValueError like the other faults
    for key in listed:
        with suppress(JoseError, ValueError, TypeError, KeyError):
            keys[str(key["kid"])] = JWKRegistry.import_key(key)
    return keys


def _claim_of(claims: Mapping[str, Any], source: str) -> Any:
    """Return a claim by its name or by a JSON Pointer such as `/realm_access/roles`; None if it is missing."""
    value: Any = claims
    for step in pointer_steps(source) if source.startswith("/") else (source,):
        value = value.get(step) if isinstance(value, dict) else None
    return value
