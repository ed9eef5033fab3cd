"""Access tokens of an OpenID Connect provider: JWTs that one of its published keys has signed, and nothing else.

What a token says of its own key (`jwk`, `jku`, `x5u`, ...) is refused, and so is an algorithm that is not configured.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import httpx
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry
from joserfc.jwt import JWTClaimsRegistry

from pdp.errors import UsageError
from pdp.json import canonical, parse_json, pointer_steps
from pdp.service.requests import HttpError
from pdp.service.security.principal import Principal
from pdp.service.settings import OidcSettings
from pdp.session import Session

LEEWAY: Final = 30
"""Seconds by which the provider's clock may differ."""

_LONGEST_TOKEN: Final = 16 * 1024
_LONGEST_ANSWER: Final = 256 * 1024
_ANSWER_SECONDS: Final = 5
_KEYS_SECONDS: Final = 600  # after which the keys are asked for again: one that is withdrawn counts no longer
_KEYS_LAST_SECONDS: Final = 24 * 3600  # how long they count while the provider does not answer
_PAUSE_SECONDS: Final = 30  # between two requests for keys, whatever ids tokens name
_PAUSE_AFTER_FAILURE_SECONDS: Final = 5
_HEADER: Final = frozenset(("alg", "kid", "typ", "x5t", "x5t#S256"))
_TYPES: Final = ("at+jwt", "application/at+jwt", "jwt")
_IDENTITY: Final = ("sub", "iss", "jti", "azp", "client_id", "sid", "act")

_log = logging.getLogger("pdp.service")


class OidcAuthenticator:
    """Who knows the tokens of one provider for one audience."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._keys = _ProviderKeys(settings)
        self._rules = JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
        )

    async def principal(self, token: str) -> Principal | None:
        """Return who holds a token; None: it is not one of this provider, or no longer.

        HttpError 503: the provider has not said by which keys it signs.
        """
        try:
            claims = await self._verified(token)
            return None if claims is None else self._principal(claims)
        except (JoseError, ValueError):
            return None
        except UsageError as error:
            _log.warning("a token of %s is of no use: %s", self._settings.issuer, error.message)
            return None

    async def _verified(self, token: str) -> dict[str, Any] | None:
        if len(token) > _LONGEST_TOKEN:
            return None
        signed = jws.extract_compact(token.encode("ascii"))
        claims, header = parse_json(signed.payload), signed.headers()
        # Before any key is asked for: tokens of others do not make us ask.
        if not (isinstance(claims, dict) and claims.get("iss") == self._settings.issuer and self._admits(header)):
            return None
        key = await self._keys.key(header["kid"])
        if key is None or not jws.validate_compact(signed, key, self._settings.algorithms):
            return None
        self._rules.validate(claims)
        return claims

    def _admits(self, header: Mapping[str, Any]) -> bool:
        return (
            _HEADER.issuperset(header)
            and isinstance(header.get("kid"), str)
            and str(header.get("typ")).lower() in _TYPES
        )

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        given = {name: _member(claims, source) for name, source in self._settings.claims.items()}
        given |= {name: claims.get(name) for name in _IDENTITY}
        session = Session.read({"claims": {name: value for name, value in given.items() if value is not None}})
        _ = session.subject  # refuses a name that looks like another
        tenant = self._settings.tenant
        stated = claims.get("scope", claims.get("scp"))
        named = stated.split(" ") if isinstance(stated, str) else stated if isinstance(stated, list) else []
        return Principal(
            # One person's clients are told apart: what one has begun, another does not end.
            canonical(
                [tenant, claims["iss"], claims["sub"], str(claims.get("azp") or claims.get("client_id"))]
            ).decode(),
            tenant,
            frozenset(scope for name, scopes in self._settings.scopes.items() if name in named for scope in scopes),
            session.claims,
            expires_at=claims["exp"] + LEEWAY,
        )


class _ProviderKeys:
    """The public keys of a provider by their ids, asked for again when they are old or a token names another one."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._keys: dict[str, Any] = {}
        self._fetched_at = self._not_before = float("-inf")
        self._fetching = asyncio.Lock()

    async def key(self, kid: str) -> Any:
        """Return a key; None: the provider has none of that id. HttpError 503: it does not say."""
        is_old = time.monotonic() > self._fetched_at + _KEYS_SECONDS
        # Who has a key to go on with does not wait for whoever asks.
        if (kid not in self._keys) if self._fetching.locked() else (is_old or kid not in self._keys):
            async with self._fetching:
                await self._refresh(kid)
        if time.monotonic() > self._fetched_at + _KEYS_LAST_SECONDS:
            raise HttpError(
                503,
                "the identity provider cannot be asked for its keys",
                hint="try again",
                headers={"Retry-After": "5"},
            )
        return self._keys.get(kid)

    async def _refresh(self, kid: str) -> None:
        now = time.monotonic()
        is_current = kid in self._keys and now <= self._fetched_at + _KEYS_SECONDS
        if is_current or now < self._not_before:
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), httpx.AsyncClient(timeout=None) as client:  # noqa: S113 - all is bounded
                self._keys = _public_keys(await _document(client, self._settings.jwks_url))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            _log.error("the keys of %s cannot be read: %s", self._settings.issuer, str(error) or type(error).__name__)
            # From now on: those who wait for their turn are answered, and do not ask one after another.
            self._not_before = time.monotonic() + _PAUSE_AFTER_FAILURE_SECONDS
        else:
            self._fetched_at, self._not_before = now, now + _PAUSE_SECONDS


async def _document(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return the JSON object at a URL, without following redirections; ValueError for anything else."""
    body = bytearray()
    async with client.stream("GET", url, headers={"Accept": "application/json"}) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"{url} answers {response.status_code}")
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _LONGEST_ANSWER:
                raise ValueError(f"{url} answers more than {_LONGEST_ANSWER} bytes")
    document = parse_json(bytes(body))
    if not isinstance(document, dict):
        raise ValueError(f"{url} answers no object")  # noqa: TRY004 - as all else that is wrong with it
    return document


def _public_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a JWK set by id; what is no key is left out. What a key is for is checked when it is used."""
    keys: dict[str, Any] = {}
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("its key set has no `keys`")  # noqa: TRY004 - likewise
    for key in listed:
        with suppress(JoseError, ValueError, TypeError, KeyError):
            keys[str(key["kid"])] = JWKRegistry.import_key(key)
    return keys


def _member(claims: Mapping[str, Any], source: str) -> Any:
    """Return a claim by its name, or by a JSON Pointer such as `/realm_access/roles`; None: it is not there."""
    value: Any = claims
    for step in pointer_steps(source) if source.startswith("/") else (source,):
        value = value.get(step) if isinstance(value, dict) else None
    return value
