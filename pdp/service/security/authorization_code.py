"""Sign-in of people at an OpenID Connect provider, by authorization code with PKCE (S256)."""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
from pydantic import Field

from pdp.client.client import secure_url
from pdp.errors import EngineError
from pdp.service.errors import HttpError
from pdp.service.models import Body
from pdp.service.security.oidc import LEEWAY, OidcAuthenticator, json_document, provider_client, provider_keys
from pdp.service.security.principal import Principal
from pdp.service.settings import OidcSettings

_ENDPOINT_SECONDS: Final = 3600.0
_log = logging.getLogger("pdp.service")


class PendingSignIn(Body):
    """A sign-in that has begun. The browser keeps it in a cookie, from whose secret all one-time values are derived.

    `session` is the token of the browser's session, which the new session replaces.
    """

    provider: str
    after: str
    again: bool = False
    session: str = Field("", repr=False)
    secret: str = Field(default_factory=partial(secrets.token_urlsafe, 32), pattern="^[A-Za-z0-9_-]{43}$", repr=False)

    def value(self, name: str) -> str:
        """Return the one-time value `state`, `nonce` or `verifier`."""
        return _base64url(hmac.digest(self.secret.encode(), name.encode(), hashlib.sha256))


class CodeSignIn:
    """Signs people in at the provider of an authenticator, whose settings must have `console`."""

    def __init__(self, authenticator: OidcAuthenticator) -> None:
        assert authenticator.settings.console is not None  # noqa: S101 - `Service` checks it
        self._authenticator = authenticator
        self._issuer, self._client = authenticator.settings.issuer, authenticator.settings.console
        self._endpoints: dict[str, str] = {}
        self._until = float("-inf")

    @property
    def name(self) -> str:
        """The name of the provider on the sign-in page."""
        return self._authenticator.settings.name or str(httpx.URL(self._issuer).host)

    async def address(self, pending: PendingSignIn, redirect_uri: str) -> str:
        """Return the URL at the provider to which the browser goes. Raise `HttpError` 503 if it cannot be found."""
        challenge = _base64url(hashlib.sha256(pending.value("verifier").encode()).digest())
        parameters = {
            **self._client.parameters, "response_type": "code", "client_id": self._client.client_id,
            "redirect_uri": redirect_uri, "scope": " ".join(dict.fromkeys(("openid", *self._client.scopes))),
            "state": pending.value("state"), "nonce": pending.value("nonce"), "code_challenge": challenge,
            "code_challenge_method": "S256", **({"max_age": "0", "prompt": "login"} if pending.again else {}),
        }  # fmt: skip
        url = await self._endpoint("authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"

    async def principal(self, pending: PendingSignIn, answer: Mapping[str, str], redirect_uri: str) -> Principal:
        """Return the person who has signed in, by the parameters with which the browser came back.

        Raises `HttpError` 403 if anything is wrong with the answer or its tokens, 503 if the provider is unavailable.
        """
        state = answer.get("state", "")
        if not hmac.compare_digest(state.encode(), pending.value("state").encode()):
            raise self._refused("the answer belongs to another sign-in")
        if answer.get("iss", self._issuer) != self._issuer:
            raise self._refused("the answer is from another issuer")
        if "code" not in answer:
            raise self._refused(f"the provider answered {answer.get('error', 'no code'):.60}")
        tokens = await self._exchanged(answer["code"], pending, redirect_uri)
        access, id_token = tokens.get("access_token"), tokens.get("id_token")
        if not isinstance(access, str) or not isinstance(id_token, str):
            raise self._refused("the provider sent no access token or no ID token")
        claims = await self._authenticator.id_claims(id_token, self._client.client_id)
        principal = await self._authenticator.principal(access)
        if claims is None or not self._is_own(claims, pending):
            raise self._refused("the ID token is invalid, or is for another sign-in")
        if principal is None or principal.claims.get("sub") != claims["sub"]:
            raise self._refused("the access token is invalid, or belongs to another person")
        # The provider's session counts from here on, not the access token, which may last only some minutes.
        return replace(principal, auth_time=claims.get("auth_time"), expires_at=float("inf"))

    def _is_own(self, claims: Mapping[str, Any], pending: PendingSignIn) -> bool:
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        client = claims.get("azp", None if several else self._client.client_id)
        signed_in_at = claims.get("auth_time", 0)
        return (
            client == self._client.client_id
            and hmac.compare_digest(str(claims.get("nonce", "")).encode(), pending.value("nonce").encode())
            and type(signed_in_at) in (int, float)
            and signed_in_at <= time.time() + LEEWAY
        )

    async def _exchanged(self, code: str, pending: PendingSignIn, redirect_uri: str) -> dict[str, Any]:
        client, url = self._client, await self._endpoint("token_endpoint")
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        form |= {"client_id": client.client_id, "code_verifier": pending.value("verifier")}
        auth = None
        if client.client_secret is not None:
            auth = httpx.BasicAuth(quote(client.client_id, ""), quote(client.client_secret.get_secret_value(), ""))
        try:
            async with provider_client() as http:
                return await json_document(http.stream("POST", url, data=form, auth=auth))
        except ValueError as error:
            raise self._refused(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise self._unavailable(error) from None

    async def _endpoint(self, name: str) -> str:
        """Return the URL of an endpoint in the provider's discovery document."""
        if time.monotonic() > self._until:
            try:
                self._endpoints = await _discovered(self._issuer)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                raise self._unavailable(error) from None
            self._until = time.monotonic() + _ENDPOINT_SECONDS
        return self._endpoints[name]

    def _refused(self, why: str) -> HttpError:
        _log.warning("rejected a sign-in at %s: %s", self._issuer, why)
        return HttpError(403, f"the sign-in at {self.name} failed: {why}", hint="sign in again")

    def _unavailable(self, error: Exception) -> HttpError:
        _log.error("sign-in at %s failed: %s", self._issuer, str(error) or type(error).__name__)
        return HttpError(503, f"{self.name} is unavailable", hint="sign in again later", headers={"Retry-After": "5"})


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


async def _discovered(issuer: str) -> dict[str, str]:
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    async with provider_client() as http:
        document = await json_document(http.stream("GET", url))
    if document.get("issuer") != issuer:
        raise ValueError(f"{url} is about another issuer")
    return {each: secure_url(str(document.get(each))) for each in ("authorization_endpoint", "token_endpoint")}


async def check_provider(settings: OidcSettings) -> None:
    """Raise `EngineError` if the provider does not answer with what the service needs."""
    try:
        if not await provider_keys(settings):
            raise ValueError(f"{settings.jwks_url} has no usable key")  # noqa: TRY301 - like the other faults
        if settings.console is not None:
            await _discovered(settings.issuer)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        why, hint = str(error) or type(error).__name__, "check the provider, jwks_url and the network"
        raise EngineError(f"oidc {settings.issuer}: {why}", hint=hint) from None
