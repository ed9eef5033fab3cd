"""The service accepts access tokens of an OpenID Connect provider, which the tests simulate with an HTTP server."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from joserfc.jwk import OctKey, RSAKey

from pdp.gateway.principal import Verifier
from pdp.service.errors import HttpError
from pdp.service.security import oidc
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.principal import Principal, Scope
from pdp.service.settings import OidcSettings, ServiceSettings
from tests.support import ROOT
from tests.support.servers.identity_provider import FIRST, KEYS, NOW, SECOND, Provider, identity_provider
from tests.support.service import service, tenant_on


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


def opened(provider: Provider, **changes: Any) -> OidcAuthenticator:
    return OidcAuthenticator(OidcSettings(**provider.settings(**changes)))


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def test_verified_token_gives_a_principal_with_scopes_and_claims(provider: Provider) -> None:
    claims = {
        "sub": "officer-123", "iss": provider.url, "jti": "t-1", "azp": "agent", "roles": ["payments.officer"],
        "emts": {"payments.lookup": True},
    }  # fmt: skip
    expected = Principal(
        f'["default","{provider.url}","officer-123","agent"]', "default",
        frozenset({Scope.PROPOSE, Scope.DECIDE}), claims, expires_at=NOW + 86_430,
        provider=f'["{provider.url}","pdp","default"]', scope_names=("wires",),
    )  # fmt: skip
    knows = opened(provider)

    assert [await knows.principal(provider.token()) for _ in range(3)] == [expected] * 3
    assert provider.asked == [KEYS]


async def test_gateway_accepts_only_tokens_of_its_tenant(provider: Provider) -> None:
    knows, token = opened(provider, tenant="acme"), provider.token()

    assert await Verifier([knows], "default").verify_token(token) is None
    accepted = await Verifier([knows], "acme").verify_token(token)
    assert (accepted and accepted.subject) == "officer-123"


@pytest.mark.parametrize(
    ("stated", "scopes"),
    [
        ({"scope": "wires audit"}, {Scope.PROPOSE, Scope.DECIDE, Scope.AUDIT}),
        ({"scope": None, "scp": ["audit"]}, {Scope.AUDIT}),
        ({"scope": "admin assert propose"}, set()),
        ({"scope": 3}, set()),
        ({"scope": None}, set()),
        ({"scope": {"wires": True}}, set()),
    ],
)
async def test_token_scopes_are_mapped_by_the_settings(
    provider: Provider, stated: dict[str, Any], scopes: set[Scope]
) -> None:
    principal = await opened(provider).principal(provider.token(**stated))

    assert principal is not None
    assert principal.scopes == scopes


MAPPED: dict[str, dict[str, Any]] = {
    "Keycloak": {
        "scope": "openid approvals desk.refund", "realm_access": {"roles": ["desk.lead", "offline_access"]},
    },
    "Microsoft Entra ID": {"scope": None, "scp": "Approvals.Decide desk.refund", "roles": ["desk.lead"]},
    "Okta": {
        "scope": None, "scp": ["openid", "approvals"], "groups": ["desk.lead"], "tool_scopes": "desk.read desk.refund",
    },
    "Auth0": {"scope": "approvals desk.refund", "https://example.com/roles": ["desk.lead"]},
}  # fmt: skip
"""Claims of tokens as each provider issues them."""


@pytest.mark.parametrize("name", MAPPED)
async def test_documented_mappings_read_the_claims_of_each_provider(provider: Provider, name: str) -> None:
    page = (ROOT / "docs/how-to/identity-providers.md").read_text(encoding="utf-8")
    [entry] = yaml.safe_load(page.split(f"## {name}\n")[1].split("```")[1].removeprefix("yaml"))["oidc"]
    header = {"typ": None if name == "Okta" else "JWT"}
    token = provider.token(FIRST, header, **{"aud": entry["audience"], "realm_access": None, **MAPPED[name]})
    settings = {**entry, "issuer": provider.url, "jwks_url": provider.url + KEYS}

    principal = await OidcAuthenticator(OidcSettings(**settings)).principal(token)

    assert principal is not None
    assert principal.scopes == {Scope.APPROVE}
    assert "desk.lead" in principal.claims["roles"]
    assert "desk.refund" in principal.claims["scope"].split()


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
async def test_only_configured_algorithms_are_accepted(provider: Provider, algorithm: str) -> None:
    provider.publish(FIRST, SECOND)
    key = SECOND if algorithm == "ES256" else FIRST
    token = provider.token(key, {"alg": algorithm, "kid": key.kid, "typ": "JWT"})

    assert await opened(provider, algorithms=(algorithm,)).principal(token) is not None
    others = tuple({"RS256", "PS256", "ES256"} - {algorithm})
    assert await opened(provider, algorithms=others).principal(token) is None


HEADERS: list[dict[str, Any]] = [
    {"alg": "RS512"}, {"kid": None}, {"kid": "other"}, {"kid": 1}, {"typ": "dpop+jwt"}, {"typ": "JWE"},
    {"jwk": FIRST.as_dict(private=False)}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/"},
    {"x5c": ["AAAA"]}, {"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}, {"cty": "JWT"},
]  # fmt: skip
CLAIMS: list[dict[str, Any]] = [
    {"iss": "https://other.example"}, {"iss": None}, {"aud": "other"}, {"aud": None}, {"aud": []}, {"aud": "pdp2"},
    {"aud": {"pdp": 1}}, {"exp": NOW - 31}, {"exp": None}, {"exp": "9999999999"}, {"exp": float("nan")},
    {"exp": float("inf")}, {"nbf": NOW + 86_400}, {"nbf": "0"}, {"iat": NOW + 86_400}, {"iat": None}, {"sub": None},
    {"sub": ""}, {"sub": 3}, {"sub": "officer\u202e"}, {"jti": 3},
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids="-".join)
async def test_invalid_token_headers_are_rejected(provider: Provider, header: dict[str, Any]) -> None:
    token = provider.token()
    whole = {"alg": "RS256", "kid": "first", "typ": "at+jwt", **header}
    start = encoded({name: value for name, value in whole.items() if value is not None}) + "." + token.split(".")[1]
    assert FIRST.private_key is not None
    signature = FIRST.private_key.sign(start.encode(), *_rs256())
    token = f"{start}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    assert await opened(provider).principal(token) is None


def _rs256() -> Any:
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    return PKCS1v15(), SHA256()


@pytest.mark.parametrize("claims", CLAIMS, ids="-".join)
async def test_invalid_token_claims_are_rejected(provider: Provider, claims: dict[str, Any]) -> None:
    assert await opened(provider).principal(provider.token(**claims)) is None


async def test_token_is_accepted_despite_a_small_clock_difference(provider: Provider) -> None:
    knows, now = opened(provider), int(time.time())

    assert await knows.principal(provider.token(exp=now - 10, iat=now + 20, nbf=now + 20)) is not None


async def test_forged_tokens_are_rejected(provider: Provider) -> None:
    knows, token = opened(provider), provider.token()
    head, body, signature = token.split(".")
    other = RSAKey.generate_key(2048, {"kid": "first"})
    public = FIRST.as_pem(private=False)
    start = f"{encoded({'alg': 'HS256', 'kid': 'first', 'typ': 'JWT'})}.{body}"
    by_public_key = hmac.new(public, start.encode(), hashlib.sha256).digest()
    forged = [
        provider.token(other),
        f"{encoded({'alg': 'none', 'kid': 'first', 'typ': 'JWT'})}.{body}.",
        f"{encoded({'alg': 'none', 'kid': 'first', 'typ': 'JWT'})}.{body}.{signature}",
        f"{start}.{base64.urlsafe_b64encode(by_public_key).rstrip(b'=').decode()}",
        f"{head}.{encoded(provider.claims(sub='chief'))}.{signature}", f"{head}.{body}.", f"{head}.{body}",
        f"{token}.", f"{head}..{signature}", "a.b.c", "..", "", "pdp_" + "0" * 59, "\u00e9.\u00e9.\u00e9", token + "A",
        f"{encoded([])}.{body}.{signature}", f"{head}.{encoded([])}.{signature}", "x" * 100_000,
        provider.token(padding="x" * 20_000), f"{'[' * 5000}.{body}.{signature}",
    ]  # fmt: skip

    assert [await knows.principal(one) for one in forged] == [None] * len(forged)
    assert await knows.principal(token) is not None


async def test_verifier_ignores_unusable_keys_of_the_provider(provider: Provider) -> None:
    provider.publish(FIRST, use="enc")
    assert await opened(provider).principal(provider.token()) is None
    good = FIRST.as_dict(private=False)
    secret: dict[str, Any] = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}
    provider.put(
        KEYS, {"keys": [3, {"kty": "RSA", "kid": "bad", "n": "x"}, {"kty": "new", "kid": "new"}, secret, good]}
    )
    knows = opened(provider)
    assert await knows.principal(provider.token()) is not None
    assert await knows.principal(provider.token(OctKey.import_key(secret), {"alg": "HS256", "kid": "secret"})) is None


async def test_verifier_fetches_keys_again_after_rotation(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    knows = opened(provider)
    by_second = provider.token(SECOND, {"alg": "ES256", "kid": "second"})
    assert await knows.principal(provider.token()) is not None
    # Even if many tokens name an unknown key, the verifier fetches the keys only once in 30 s.
    assert [await knows.principal(by_second) for _ in range(3)] == [None] * 3
    assert provider.asked.count(KEYS) == 1
    provider.publish(SECOND)
    clock.now += 31
    assert await knows.principal(by_second) is not None
    assert await knows.principal(provider.token()) is None
    assert provider.asked.count(KEYS) == 2
    # After a key is withdrawn, it takes at most ten minutes until the verifier rejects the key.
    provider.publish(FIRST)
    clock.now += 601
    assert await knows.principal(by_second) is None
    assert await knows.principal(provider.token()) is not None


async def test_cached_keys_are_used_while_the_provider_is_down(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock(monkeypatch)
    knows, late = opened(provider), opened(provider)
    assert await knows.principal(provider.token()) is not None
    provider.answers.clear()
    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            await late.principal(provider.token())
        assert (caught.value.status, caught.value.message) == (
            503, "the keys of the identity provider are unavailable"
        )  # fmt: skip
    assert provider.asked.count(KEYS) == 2
    clock.now += 3600
    assert await knows.principal(provider.token()) is not None
    clock.now += 24 * 3600
    with pytest.raises(HttpError):
        await knows.principal(provider.token())


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (302, b"", "{0}/keys answered 302"),
        (200, b"[]", "{0}/keys sent an answer that is not a JSON object"),
        (200, b"{}", "the key set has no list `keys`"),
        (200, b"{" + b" " * 300_000, "{0}/keys sent an answer of more than 262144 bytes"),
        (200, b"\xff", "value: not UTF-8 text"),
    ],
)
async def test_invalid_key_documents_are_logged(
    provider: Provider, status: int, body: bytes, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.answers[KEYS] = (status, body)
    token = provider.token()
    with pytest.raises(HttpError), caplog.at_level(logging.ERROR, "pdp.service"):
        await opened(provider).principal(token)

    assert [record.getMessage() for record in caplog.records] == [
        f"the keys of {provider.url} cannot be read: {error.replace('{0}', provider.url)}"
    ]


async def test_key_request_to_an_unresponsive_provider_times_out(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_ANSWER_SECONDS", 0.05)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        url = f"http://127.0.0.1:{silent.server_port}"
        with pytest.raises(HttpError):
            await opened(provider, jwks_url=url).principal(provider.token())


async def test_token_of_another_issuer_triggers_no_key_request(provider: Provider) -> None:
    assert await opened(provider).principal(provider.token(iss="https://other.example")) is None
    assert provider.asked == []


async def test_service_accepts_an_oidc_token_over_http(provider: Provider, tmp_path: Path) -> None:
    async with service(tmp_path, oidc=(provider.settings(scopes={"wires": ("admin", "assert", "audit")}),)) as served:
        client = served.client(token=provider.token())
        forged = served.client(token=provider.token(RSAKey.generate_key(2048, {"kid": "first"})))
        own = served.client()
        cookie = (await client.post("/v1/session")).cookies["pdp_session"]
        held = await served.service.tokens.principal(cookie)
        statuses = [(await one.get("/v1/tokens")).status_code for one in (client, forged, own)]
        provider.answers.clear()
        served.service.authenticators[1:] = [opened(provider)]
        down = await client.get("/v1/tokens")

        assert held is not None
        assert (held.id, held.scopes, held.claims["sub"], held.claims["jti"]) == (
            f'["default","{provider.url}","officer-123","agent"]', frozenset({Scope.AUDIT}), "officer-123", "t-1"
        )  # fmt: skip
        assert statuses == [200, 401, 200]
        assert (down.status_code, down.json()["error"]["code"]) == (503, "service.unavailable")
        assert (await own.get("/v1/tokens")).status_code == 200


def test_invalid_oidc_settings_are_rejected(provider: Provider, tmp_path: Path) -> None:
    tenants = {"default": tenant_on(f"sqlite:///{tmp_path}/t.db")}
    for changes, message in (
        ({"issuer": "http://id.example.com"}, "has to begin with https://"),
        ({"issuer": "http://localhost.evil.example"}, "has to begin with https://"),
        ({"issuer": "https://"}, "has to begin with https://"),
        ({"algorithms": ("none",)}, "Input should be 'RS256', 'PS256' or 'ES256'"),
        ({"algorithms": ("HS256",)}, "Input should be 'RS256', 'PS256' or 'ES256'"),
        ({"scopes": {"wires": ("root",)}}, "Input should be 'decide', 'propose'"),
        ({"tenant": "other"}, "unknown tenant other; add it to tenants"),
        ({"console": {"client_id": "public"}}, "set client_secret for each of them"),
    ):
        console = {"client_id": "pdp", "client_secret": "secret"}
        other = provider.settings(issuer="https://other.example", console=console)
        with pytest.raises(ValueError, match=message):
            ServiceSettings.model_validate({"tenants": tenants, "oidc": (other, provider.settings(**changes))})


class _Clock:
    """A monotonic clock that a test can advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(oidc, "time", SimpleNamespace(monotonic=lambda: self.now))
