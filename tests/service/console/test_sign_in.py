"""The console opens a session for the right person, ends it, and answers only requests of its own pages."""

import json
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import text

from pdp.service.console.page import ViewerNeeds
from pdp.service.console.routes import ROUTES
from pdp.service.console.sign_in.link import OneTimeLink
from pdp.service.console.sign_in.session import is_fresh
from pdp.service.security.authorization_code import CodeSignIn
from pdp.service.security.oidc import OidcAuthenticator
from pdp.service.security.principal import BrowserSession, Principal, Scope
from pdp.stores.sql.database import Database
from tests.service.console import ORIGIN, Visitor, signed_in, words_of
from tests.support import ROOT
from tests.support.command_line import written
from tests.support.payments import EXAMPLE, session, wire
from tests.support.servers.identity_provider import (
    CLIENT,
    DISCOVERY,
    KEYS,
    SECRET,
    Provider,
    agreed,
    identity_provider,
)
from tests.support.service import APPROVER, OFFICER, ServedApp, service, tenant_on

COOKIE, SIGNING_IN = "pdp_console_8181", "pdp_console_sign_in_8181"
pytestmark = pytest.mark.asyncio(loop_scope="module")

CONSOLE = {"client_id": CLIENT, "client_secret": SECRET, "scopes": ["wires", "audit"]}


@pytest.fixture(scope="module")
def running_provider() -> Iterator[Provider]:
    with identity_provider() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(running_provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedApp]:
    async with service(tmp_path_factory.mktemp("shared"), oidc=settings(running_provider)) as served:
        yield served


@pytest.fixture
def provider(running_provider: Provider) -> Iterator[Provider]:
    """Return the provider. Changes of its answers end with the test."""
    before = {name: value.copy() for name, value in vars(running_provider).items() if isinstance(value, dict | list)}
    yield running_provider
    vars(running_provider).update(before)


@pytest.fixture
def served(shared: ServedApp, provider: Provider) -> ServedApp:
    """Return a service with the provider, about which the service knows nothing yet."""
    oidc = OidcAuthenticator(shared.service.settings.oidc[0])
    shared.service.authenticators[1:] = [oidc]
    shared.service.sign_ins = {oidc.settings.key: CodeSignIn(oidc)}
    return shared


def settings(provider: Provider, **changes: Any) -> tuple[dict[str, Any]]:
    return (provider.settings(name="Acme", console=CONSOLE, **changes),)


async def posted(client: httpx.AsyncClient, path: str, origin: str = ORIGIN, **fields: str) -> httpx.Response:
    return await client.post(f"/console/{path}", data=fields, headers={"Origin": origin})


def leads_to(answer: httpx.Response) -> str:
    """Return the address that a page opens by itself."""
    found = re.search(r'<meta http-equiv="refresh" content="0; url=([^"]*)">', answer.text)
    assert found, answer.text
    return unescape(found[1])


async def begun(client: httpx.AsyncClient, provider: Provider, after: str = "/console/help?a=1") -> str:
    """Begin a sign-in with the button of the page. Return the address to which the provider sends the browser."""
    page = await client.get("/console/sign-in", params={"next": after})
    assert "Sign in with Acme" in page.text
    key = unescape(re.findall(r'name="provider" value="([^"]*)"', page.text)[0])
    sent = await posted(client, "sign-in/provider", provider=key, next=after)
    assert sent.status_code == 200, sent.text
    return agreed(provider, leads_to(sent))


async def finished(client: httpx.AsyncClient, address: str) -> httpx.Response:
    """Open an address as a browser that comes from another site, which sends no cookie with SameSite=Strict."""
    strict = client.cookies.get(COOKIE)
    if strict is not None:
        client.cookies.delete(COOKIE)
    return await client.get(address, headers={"Sec-Fetch-Site": "cross-site"})


async def holder(served: ServedApp, client: httpx.AsyncClient) -> Principal | None:
    return await served.service.holder(next(iter(client.cookies.values()), ""), BrowserSession.CONSOLE)


def events(served: ServedApp) -> list[tuple[str, str, str, list[str]]]:
    store = served.service.settings.tenants["default"].store
    with Database.open(store) as database, database.read() as connection:
        lines = [json.loads(line) for (line,) in connection.execute(text("SELECT line FROM pdp_audit ORDER BY seq"))]
    return [(event["type"], event["subject"], event["reason"], event["codes"]) for event in lines]


async def test_person_signs_in_at_the_provider_and_signs_out(provider: Provider, served: ServedApp) -> None:
    client = served.client(token="")
    address = await begun(client, provider)
    answer = await finished(client, address)
    sent, cookie = provider.sent[0], client.cookies[COOKIE]
    person, by_http = await holder(served, client), await served.service.holder(provider.token(azp=CLIENT))
    page = await client.get(leads_to(answer))
    [signing_in, session] = answer.headers.get_list("set-cookie")[::-1]
    await Visitor(client).posted("sign-out")

    assert address.startswith("http://127.0.0.1:8181/console/callback?")
    assert {name: sent[name] for name in ("response_type", "client_id", "scope", "code_challenge_method")} == {
        "response_type": "code", "client_id": CLIENT, "scope": "openid wires audit", "code_challenge_method": "S256",
    }  # fmt: skip
    assert (leads_to(answer), page.status_code) == ("/console/help?a=1", 200)
    assert "Signed in as officer-123" in words_of(page)
    assert session == f"{COOKIE}={cookie}; HttpOnly; Path=/; SameSite=strict"
    assert (SIGNING_IN in signing_in, "Max-Age=0" in signing_in) == (True, True)
    assert person is not None
    assert by_http is not None
    assert (person.id, person.claims) == (by_http.id, by_http.claims)
    assert person.scopes == {Scope.PROPOSE, Scope.DECIDE, Scope.AUDIT}
    assert 8 * 3600 - 60 < person.expires_at - time.time() <= 8 * 3600
    assert abs((person.auth_time or 0) - time.time()) < 60
    assert events(served)[-2:] == [
        ("session.opened", "officer-123", cookie[4:20], ["audit", "decide", "propose"]),
        ("session.ended", "officer-123", cookie[4:20], []),
    ]
    client.cookies.set(COOKIE, cookie)
    assert (await client.get("/console/help")).headers["location"].startswith("/console/sign-in?")


def _changed(name: str, value: str) -> Callable[[str], str]:
    return lambda address: str(httpx.URL(address).copy_set_param(name, value))


ADDRESSES: list[tuple[Callable[[str], str], str]] = [
    (_changed("state", "x"), "the answer belongs to another sign-in"),
    (lambda address: str(httpx.URL(address).copy_remove_param("state")), "the answer belongs to another sign-in"),
    (_changed("iss", "https://other.example"), "the answer is from another issuer"),
    (_changed("code", "other"), "token answered 400"),
    (
        lambda address: str(httpx.URL(address).copy_remove_param("code").copy_set_param("error", "access_denied")),
        "the provider answered access_denied",
    ),
]
TOKENS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *[
        ({}, identity, "the ID token is invalid, or is for another sign-in")
        for identity in (
            {"nonce": "x"}, {"nonce": None}, {"aud": "other"}, {"aud": "pdp"}, {"aud": [CLIENT, "pdp"]},
            {"azp": "agent"}, {"exp": 1}, {"exp": None}, {"iss": "https://other.example"},
            {"auth_time": time.time() + 3600}, {"auth_time": "1"}, {"auth_time": True},
            {"header": {"typ": "at+jwt"}}, {"header": {"kid": "second"}},
        )
    ],
    ({}, {"sub": "officer-9"}, "the access token is invalid, or belongs to another person"),
    *[
        (access, {}, "the access token is invalid, or belongs to another person")
        for access in ({"sub": "officer-9"}, {"aud": "other"}, {"aud": CLIENT}, {"exp": 1})
    ],
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), ADDRESSES)
async def test_forged_answer_of_the_provider_is_rejected(
    provider: Provider, change: Callable[[str], str], why: str, served: ServedApp
) -> None:
    client = served.client(token="")
    address = await begun(client, provider)
    answer = await finished(client, change(address))
    again = await finished(client, address)

    assert (answer.status_code, COOKIE in client.cookies) == (403, False)
    assert why in words_of(answer)
    # The first answer has ended this sign-in.
    assert (again.status_code, "did not begin in this browser" in words_of(again)) == (403, True)


@pytest.mark.parametrize(("access", "identity", "why"), TOKENS)
async def test_invalid_tokens_of_the_provider_open_no_session(
    provider: Provider, access: dict[str, Any], identity: dict[str, Any], why: str, served: ServedApp
) -> None:
    provider.access, provider.identity = access, identity
    client = served.client(token="")
    answer = await finished(client, await begun(client, provider))

    assert (answer.status_code, COOKIE in client.cookies) == (403, False)
    assert why in words_of(answer)


async def test_answer_of_the_provider_works_once_and_in_one_browser(provider: Provider, served: ServedApp) -> None:
    victim, attacker = served.client(token=""), served.client(token="")
    await begun(victim, provider)
    address = await begun(attacker, provider)
    stolen = attacker.cookies[SIGNING_IN]
    planted = await finished(victim, address)
    assert leads_to(await finished(attacker, address))
    attacker.cookies.set(SIGNING_IN, stolen)
    replayed = await finished(attacker, address)
    victim.cookies.set(SIGNING_IN, "damaged")
    damaged = await finished(victim, address)

    assert [answer.status_code for answer in (planted, replayed, damaged)] == [403] * 3
    assert COOKIE not in victim.cookies


DOWN: list[tuple[str, int, bytes, int]] = [
    (DISCOVERY, 302, b"", 503), (DISCOVERY, 200, b"[]", 503), (DISCOVERY, 200, b"{" + b" " * 300_000, 503),
    (DISCOVERY, 200, b'{"issuer": "https://other.example"}', 503),
    (DISCOVERY, 200, b'{"issuer": "URL", "authorization_endpoint": "http://id.example", "token_endpoint": "URL"}', 503),
    ("/token", 302, b"", 403), ("/token", 500, b"", 403), ("/token", 200, b"{}", 403), (KEYS, 500, b"", 503),
]  # fmt: skip


@pytest.mark.parametrize(("path", "status", "body", "expected"), DOWN)
async def test_provider_that_fails_is_reported(
    provider: Provider, path: str, status: int, body: bytes, expected: int, served: ServedApp
) -> None:
    provider.answers[path] = (status, body.replace(b"URL", provider.url.encode()))
    client, [key] = served.client(token=""), served.service.sign_ins
    answer = await posted(client, "sign-in/provider", provider=key)
    if path != DISCOVERY:
        answer = await finished(client, agreed(provider, leads_to(answer)))

    assert (answer.status_code, COOKIE in client.cookies) == (expected, False)
    assert "again" in words_of(answer)


@pytest.mark.parametrize(
    ("identity", "status", "may"),
    [
        ({}, 200, True),
        ({"auth_time": time.time() - 3600}, 403, False),
        ({"auth_time": None}, 403, False),
        ({"sub": "officer-9"}, 403, False),
    ],
)
async def test_commit_high_needs_a_new_sign_in_after_15_minutes(
    provider: Provider, identity: dict[str, Any], status: int, may: bool, served: ServedApp
) -> None:
    client = served.client(token="")
    provider.identity = {"auth_time": time.time() - 16 * 60}
    await finished(client, await begun(client, provider))
    before, token = await holder(served, client), client.cookies[COOKIE]
    provider.identity = identity
    sent = await Visitor(client).posted("sign-in/again", {"next": "/console/approvals/1"})
    answer = await finished(client, agreed(provider, leads_to(sent)))
    after = await holder(served, client)

    assert {name: provider.sent[1][name] for name in ("max_age", "prompt")} == {"max_age": "0", "prompt": "login"}
    assert before is not None
    assert (answer.status_code, is_fresh(before), after is not None and is_fresh(after)) == (status, False, may)
    assert not may or leads_to(answer) == "/console/approvals/1"
    # The new session replaces the one before.
    assert (await served.service.holder(token, BrowserSession.CONSOLE) is None) is may


async def test_commit_high_approval_is_granted_only_after_signing_in_again(provider: Provider, tmp_path: Path) -> None:
    project = tmp_path / "examples" / "payments"
    shutil.copytree(EXAMPLE, project)
    (tmp_path / "bundles").symlink_to(ROOT / "bundles")
    rules = (EXAMPLE / "governance.yaml").read_text()
    written(
        project / "governance.yaml",
        rules.replace("  initiate_wire:", "  initiate_wire:\n    effect_class: commit-high"),
    )
    tenants = {"default": tenant_on(f"sqlite:///{tmp_path}/own.db", project=project / "pdp.yaml")}
    provider.access = {"sub": "approver-7", "realm_access": {"roles": ["payments.approver"]}, "scope": "approvals"}
    provider.identity = {"sub": "approver-7", "auth_time": time.time() - 3600}
    oidc = settings(provider, scopes={"approvals": ("approve",)})
    async with service(tmp_path, tenants=tenants, oidc=oidc) as served:
        pep, claims = served.service.tenants["default"].pep, {**OFFICER, "sub": "clerk-1"}
        asked = (await pep.acall(wire(amount=40_000), session(time=None, claims=claims))).approval
        assert asked is not None
        visitor, page = Visitor(served.client(token="")), f"approvals/{asked.id}"
        await finished(visitor.client, await begun(visitor.client, provider))
        shown = await visitor.get(page)
        refused = await visitor.posted(page, {"step": "once"})
        provider.identity["auth_time"] = time.time()
        sent = await visitor.posted("sign-in/again", {"next": f"/console/{page}"})
        back = leads_to(await finished(visitor.client, agreed(provider, leads_to(sent))))
        granted = await visitor.posted(page, {"step": "once"})

        assert ("Sign in again" in shown.text, "Approve once" in shown.text) == (True, False)
        assert (refused.status_code, back, granted.status_code) == (403, f"/console/{page}", 303)
        assert served.service.tenants["default"].approvals.get(asked.id).state == "granted"


async def test_pasted_token_never_grants_commit_high_nor_signs_in_again(provider: Provider, served: ServedApp) -> None:
    own, pasted = await signed_in(served), served.client(token="")
    await posted(pasted, "sign-in", token=provider.token())
    people = [await holder(served, client) for client in (own.client, pasted)]
    refused = await own.posted("sign-in/again", {"next": "/console/help"})

    assert [person is not None and is_fresh(person) for person in people] == [False, False]
    assert (refused.status_code, provider.sent) == (403, [])


MAPPINGS: dict[str, tuple[dict[str, Any] | None, set[Scope] | None]] = {
    "same settings": ({}, {Scope.PROPOSE, Scope.DECIDE, Scope.AUDIT}),
    "mapping removed": ({"scopes": {"wires": ("propose", "admin", "assert")}}, {Scope.PROPOSE}),
    "other names": ({"scopes": {"approve": ("approve",), "propose": ("audit",)}}, set()),
    "other audience": ({"audience": "other"}, None),
    "provider removed": (None, None),
}


async def test_session_loses_scopes_that_the_settings_no_longer_map(
    provider: Provider, served: ServedApp, tmp_path: Path
) -> None:
    client, url = served.client(token=""), served.service.settings.tenants["default"].store
    await finished(client, await begun(client, provider))
    for name, (changes, scopes) in MAPPINGS.items():
        oidc = () if changes is None else settings(provider, **changes)
        async with service(tmp_path, url=url, oidc=oidc) as later:
            person = await holder(later, client)
            assert (name, None if person is None else {*person.scopes}) == (name, scopes)


@pytest.fixture
def connected(served: ServedApp) -> Iterator[Callable[[], httpx.AsyncClient]]:
    """Return a function that makes clients whose requests come from a connection of this process."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
        transport = httpx.ASGITransport(served.app, client=own.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield lambda: httpx.AsyncClient(transport=transport, base_url=url)


async def test_one_time_link_opens_one_session_for_its_person(
    served: ServedApp, connected: Callable[[], httpx.AsyncClient]
) -> None:
    link = OneTimeLink(APPROVER)
    address = link.address("")
    wrong, late, second = connected(), connected(), connected()
    no_link = await wrong.get(address)
    served.app.state.link = link
    refused = await wrong.get(address[:-1])
    first = connected()
    taken = [await client.get(address) for client in (first, first, second)]
    person = await holder(served, first)
    served.app.state.link = expired = OneTimeLink(APPROVER)
    expired._until = 0
    too_late = await late.get(expired.address(""))
    await link.end(served.service)
    ended = await holder(served, first)
    served.app.state.link = None

    assert [answer.status_code for answer in (no_link, refused, too_late)] == [403] * 3
    assert [answer.status_code for answer in taken] == [303, 303, 403]
    assert person is not None
    assert {*person.scopes} == {*Scope} - {Scope.ADMIN, Scope.ASSERT, Scope.METRICS, Scope.REQUESTS}
    assert person.claims == APPROVER
    assert (is_fresh(person), ended) == (False, None)


async def test_console_of_a_link_answers_only_connections_of_its_user(
    served: ServedApp, connected: Callable[[], httpx.AsyncClient]
) -> None:
    own, elsewhere = connected(), (await signed_in(served)).client
    served.app.state.link = link = OneTimeLink(APPROVER)
    by_others = [await elsewhere.get(address) for address in (link.address(""), "/console/help")]
    opened = await own.get(link.address(""))
    served.app.state.link = None

    assert [answer.status_code for answer in by_others] == [403, 403]
    assert "answers only the user of this machine who started it" in words_of(by_others[0])
    assert (opened.status_code, len(own.cookies)) == (303, 1)


FORGED: list[tuple[dict[str, str], str | None]] = [
    ({"Origin": ORIGIN}, None), ({"Origin": ORIGIN}, ""), ({"Origin": ORIGIN}, "0" * 64), ({"Origin": ORIGIN}, "other"),
    ({}, "own"), ({"Origin": "null"}, "own"), ({"Origin": "https://evil.example"}, "own"),
    ({"Origin": "http://127.0.0.1:9999"}, "own"), ({"Origin": "http://127.0.0.1:8181.evil.example"}, "own"),
    ({"Origin": "http://evil.example", "Host": "evil.example"}, "own"), ({"Origin": "http://[", "Host": "["}, "own"),
    ({"Origin": ORIGIN, "Content-Type": "text/plain"}, "own"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "csrf"), FORGED)
async def test_forged_form_changes_nothing(headers: dict[str, str], csrf: str | None, served: ServedApp) -> None:
    visitor, other = await signed_in(served), await signed_in(served)
    tokens = {"own": await csrf_of(visitor), "other": await csrf_of(other)}
    fields = {} if csrf is None else {"csrf": tokens.get(csrf, csrf)}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await visitor.client.post(
        "/console/sign-out", content=str(httpx.QueryParams(fields)), headers={**kind, **headers}
    )

    assert answer.status_code == (400 if "Content-Type" in headers else 403)
    assert (await visitor.get("help")).status_code == 200


async def csrf_of(visitor: Visitor) -> str:
    [found] = {*re.findall(r'name="csrf" value="([0-9a-f]+)"', (await visitor.get("help")).text)}
    return str(found)


async def test_sign_in_is_not_forged_from_another_site(provider: Provider, served: ServedApp) -> None:
    client, token, [key] = served.client(token=""), served.token(), served.service.sign_ins
    for origin in ("https://evil.example", "null"):
        assert (await posted(client, "sign-in", origin, token=token)).status_code == 403
        assert (await posted(client, "sign-in/provider", origin, provider=key)).status_code == 403

    assert not client.cookies


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("/console/help?x=%2F", "/console/help?x=%2F"),
        ("/console/" + "a" * 5000, "/console/"),
        *[
            (address, "/console/")
            for address in (
                "", "https://evil.example", "//evil.example", "/\\evil.example", "/console/\\evil.example",
                "/v1/tokens", "javascript:alert(1)", "/console/\r\nSet-Cookie: a=b", "/console/\u2028", "console/help",
            )
        ],
    ],
)  # fmt: skip
async def test_sign_in_leads_only_to_pages_of_the_console(
    after: str, expected: str, provider: Provider, served: ServedApp
) -> None:
    client, [key] = served.client(token=""), served.service.sign_ins
    by_token = await posted(client, "sign-in", token=served.token(), next=after)
    sent = await posted(client, "sign-in/provider", provider=key, next=after, csrf=await csrf_of(Visitor(client)))
    by_provider = await finished(client, agreed(provider, leads_to(sent)))

    assert leads_to(by_provider) == expected
    assert by_token.headers["location"] == (after if len(after) > 4000 else expected)


async def test_sessions_and_tokens_are_not_interchangeable(served: ServedApp) -> None:
    bearer = served.client([Scope.APPROVE, Scope.AUDIT, Scope.ADMIN], APPROVER)
    token = bearer.headers["Authorization"][7:]
    api = (await bearer.post("/v1/session")).cookies["pdp_session"]
    console = (await signed_in(served)).client.cookies[COOKIE]

    def in_cookie(name: str, value: str) -> httpx.AsyncClient:
        client = served.client(token="")
        client.cookies.set(name, value)
        return client

    for value in (token, api, console + "A", console[:-1], ""):
        answer = await in_cookie(COOKIE, value).get("/console/help")
        assert (answer.status_code, answer.headers["location"][:16]) == (303, "/console/sign-in")
    for value in (token, console):
        assert (await in_cookie("pdp_session", value).get("/v1/audit")).status_code == 401
    for client in (served.client(token=console), in_cookie(COOKIE, console)):
        assert (await client.get("/v1/audit")).status_code == 401
    for value in (api, console):
        assert (await posted(served.client(token=""), "sign-in", token=value)).status_code == 403


@pytest.mark.parametrize("ending", ["token revoked", "token expired", "administrator", "signed out", "signed in again"])
async def test_session_ends(ending: str, served: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    client, token = served.client(token=""), served.token([Scope.APPROVE], APPROVER)
    await posted(client, "sign-in", token=token)
    session = client.cookies[COOKIE]
    if ending == "token revoked":
        await served.service.tokens.revoke(token[4:20], "default")
    elif ending == "administrator":
        [*_, (kind, _, session_id, _)] = events(served)
        assert kind == "session.opened"
        assert (await served.client([Scope.ADMIN], {}).delete(f"/v1/tokens/{session_id}")).status_code == 204
    elif ending == "token expired":
        later = time.time() + 366 * 86_400
        monkeypatch.setattr("pdp.service.security.tokens.time.time", lambda: later)
    elif ending == "signed out":
        await Visitor(client).posted("sign-out")
    else:
        csrf = await csrf_of(Visitor(client))
        assert (await posted(client, "sign-in", token=token, csrf=csrf)).status_code == 303
        assert (await client.get("/console/help")).status_code == 200
    client.cookies.set(COOKIE, session)
    client.cookies = {COOKIE: session}

    assert (await client.get("/console/help")).status_code == 303


async def test_cookies_with_https_belong_to_this_host(provider: Provider, tmp_path: Path) -> None:
    url = "https://pdp.example.com"
    async with service(tmp_path, oidc=settings(provider), public_url=url) as served:
        client, [key] = served.client(token=""), served.service.sign_ins
        signing_in = await posted(client, "sign-in/provider", url, provider=key)
        session = await posted(client, "sign-in", url, token=served.token())

        for answer, name, site in ((session, "pdp_console", "strict"), (signing_in, "pdp_console_sign_in", "lax")):
            cookie = answer.headers["Set-Cookie"]
            assert cookie.startswith(f"__Host-{name}=")
            assert cookie.endswith(f"Path=/; SameSite={site}; Secure")
            assert "Domain" not in cookie
        assert agreed(provider, leads_to(signing_in)).startswith(f"{url}/console/callback?")
        assert (await posted(client, "sign-in", ORIGIN)).status_code == 403


async def test_every_other_page_needs_a_session() -> None:
    public = {
        (method, route.path)
        for route in ROUTES
        for method in getattr(route, "methods", ["GET"])
        if not any(isinstance(each.call, ViewerNeeds) for each in _dependencies(route))
    }
    assert public == {
        ("GET", "/console/sign-in"), ("POST", "/console/sign-in"), ("POST", "/console/sign-in/provider"),
        ("GET", "/console/callback"), ("GET", "/console/link/{secret}"), ("GET", "/console/static"),
    }  # fmt: skip


def _dependencies(route: Any) -> list[Any]:
    return route.dependant.dependencies if hasattr(route, "dependant") else []


async def test_pages_cannot_be_framed_or_extended(served: ServedApp) -> None:
    visitor = await signed_in(served)
    anybody = served.client(token="")
    answers = [await visitor.get("help"), await visitor.get("nothing"), await anybody.get("/console/sign-in")]
    for answer in (*answers, await anybody.get("/console/help"), await posted(anybody, "sign-in")):
        headers: Mapping[str, str] = answer.headers
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert {"default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"} <= {*policy.split("; ")}
        assert "unsafe" not in policy
