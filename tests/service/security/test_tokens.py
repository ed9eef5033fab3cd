"""Access tokens have a holder, scopes and a lifetime. An access token can open a read-only session for a browser."""

import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp.clock import to_seconds
from pdp.errors import UsageError
from pdp.installed import code_url
from pdp.service.security import tokens as tokens_module
from pdp.service.security.principal import BrowserSession, Principal, Scope
from pdp.service.security.tokens import TokenAuthenticator, first_token, issue_token
from pdp.stores.sql.database import Database
from pdp.stores.url import OpenStores
from tests.support import at_once
from tests.support.postgres import DATABASES, made_database
from tests.support.service import OFFICER, ServedApp, service


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made_database(request.param, tmp_path)


@pytest.fixture(params=DATABASES)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedApp]:
    async with service(tmp_path, request.param) as opened:
        yield opened


async def test_token_identifies_its_holder_and_only_its_hash_is_stored(url: str) -> None:
    with closing(OpenStores(url)) as stores:
        record, token = issue_token(
            stores.tokens,
            "default",
            {"name": "ci", "scopes": ["propose", "decide"], "claims": OFFICER, "expires_in": 60},
        )
        knows = TokenAuthenticator(stores.tokens)
        expected = Principal(
            record.id, "default", frozenset({Scope.DECIDE, Scope.PROPOSE}), {**OFFICER, "jti": record.id},
            expires_at=record.expires_at,
        )  # fmt: skip

        assert await knows.principal(token) == await knows.principal(token) == expected
        assert stores.tokens.list("default") == [record]
        assert record.as_json() == {
            "id": token[4:20], "tenant": "default", "name": "ci", "scopes": ["decide", "propose"], "claims": OFFICER,
            "created_at": to_seconds(record.created_at), "expires_at": to_seconds(record.created_at + 60),
            "revoked": False, "state": "active",
        }  # fmt: skip
    with Database.open(url) as database, database.read() as connection:
        row = str(connection.execute(text("SELECT * FROM pdp_tokens")).all())
    assert token[20:] not in row
    assert hashlib.sha256(token.encode()).hexdigest() in row
    assert record.secret_digest not in repr(record)


async def test_altered_tokens_are_rejected(url: str) -> None:
    with closing(OpenStores(url)) as stores:
        _, token = issue_token(stores.tokens, "default", {"name": "ci", "scopes": ["decide"]})
        changed = token[:-1] + ("A" if token[-1] != "A" else "B")
        others = [
            changed, token[:20], token[:-1], token + "A", "", "pdp_", token.upper(), f"pdp_{'0' * 16}{token[20:]}",
            token.replace("pdp_", "pdp-"), f"{token}\n", token[:30] + "\0" + token[31:], "x" * 100_000,
        ]  # fmt: skip
        for knows in (TokenAuthenticator(stores.tokens), remembering := TokenAuthenticator(stores.tokens)):
            assert [await knows.principal(other) for other in others] == [None] * len(others)
            assert await remembering.principal(token) is not None


async def test_token_is_valid_until_it_expires(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(OpenStores(url)) as stores:
        record, token = issue_token(stores.tokens, "default", {"name": "ci", "scopes": ["decide"], "expires_in": 60})
        knows = TokenAuthenticator(stores.tokens)

        monkeypatch.setattr(time, "time", lambda: record.expires_at - 0.001)
        assert await knows.principal(token) is not None
        monkeypatch.setattr(time, "time", lambda: record.expires_at)
        assert await knows.principal(token) is None


async def test_other_processes_reject_a_revoked_token_within_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(OpenStores(url)) as stores:
        record, token = issue_token(stores.tokens, "default", {"name": "ci", "scopes": ["decide"]})
        here, elsewhere = TokenAuthenticator(stores.tokens), TokenAuthenticator(stores.tokens)
        assert None not in (await here.principal(token), await elsewhere.principal(token))

        assert [
            await here.revoke(record.id, "other"), await here.revoke("0" * 16, "default"),
            await here.revoke("\0", "default"),
        ] == [False] * 3  # fmt: skip
        assert await here.principal(token) is not None
        assert await here.revoke(record.id, "default")

        assert await here.principal(token) is None
        assert await elsewhere.principal(token) is not None
        later = time.monotonic() + tokens_module._REMEMBERED_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert await elsewhere.principal(token) is None


def kept(*_: object) -> None:
    """Keep a first token."""


def test_first_token_of_a_tenant_is_issued_once(url: str) -> None:
    with closing(OpenStores(url)) as first, closing(OpenStores(url)) as second:
        given = at_once([partial(first_token, stores.tokens, "default", kept) for stores in (first, second) * 4])
        one = [token for token in given if token]
        again = first_token(first.tokens, "default", kept)
        first.tokens.revoke(one[0][4:20], time.time(), "default")

        assert (len(one), again, first_token(first.tokens, "default", kept)) == (1, None, None)
        other = first_token(first.tokens, "other", kept)
        assert [(record.tenant, record.scopes) for record in first.tokens.list("other")] == [
            ("other", tuple(sorted(Scope)))
        ]
        assert other is not None
        issue_token(first.tokens, "third", {"name": "ci", "scopes": ["decide"]})
        assert first_token(first.tokens, "third", kept) is None


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name: String should have at least 1 character"),
    ({"name": "n" * 1025}, "name: String should have at most 1024 characters"),
    ({"name": "\ud800"}, "name: "),
    ({"name": None}, "name: Input should be a valid string"),
    ({"scopes": []}, "scopes: List should have at least 1 item"),
    ({"scopes": "decide"}, "scopes: Input should be a valid list"),
    ({"scopes": ["decide", "root"]}, "scopes.1: Input should be 'decide', 'propose', 'approve', 'audit', 'admin'"),
    ({"claims": {"roles": ["x"]}}, "session: claims.sub is missing, but a decision needs a subject"),
    ({"claims": {"sub": "a\u202eb"}}, "session: claims.sub is "),
    ({"expires_in": 0}, "expires_in: Input should be greater than 0"),
    ({"expires_in": 10**12}, "expires_in: Input should be less than or equal to 315360000"),
    ({"expires_in": True}, "expires_in: Input should be a valid integer"),
    ({"else" * 100: 1}, f"{'else' * 15}: Extra inputs are not permitted"),
]


def test_issue_token_rejects_invalid_arguments(tmp_path: Path) -> None:
    with closing(OpenStores(f"sqlite:///{tmp_path}/t.db", upgrade=True)) as stores:
        for changes, message in INVALID:
            with pytest.raises(UsageError) as caught:
                issue_token(stores.tokens, "default", {"name": "ci", "scopes": ["decide"], "claims": {}, **changes})
            assert str(caught.value).startswith(message)
        assert stores.tokens.list("default") == []


async def test_tokens_are_created_listed_and_revoked_over_http(served: ServedApp) -> None:
    admin = served.client([Scope.ADMIN], {})
    made = await admin.post("/v1/tokens", json={"name": "ci", "scopes": ["admin"], "claims": OFFICER, "expires_in": 60})
    answer = made.json()
    token = answer.pop("token")
    listed = (await admin.get("/v1/tokens")).json()["tokens"]

    assert made.status_code == 201
    assert answer == listed[1]
    assert answer == {
        "id": token[4:20], "tenant": "default", "name": "ci", "scopes": ["admin"], "claims": OFFICER,
        "created_at": answer["created_at"], "expires_at": answer["expires_at"], "revoked": False, "state": "active",
        "warnings": [],
    }  # fmt: skip
    other = served.client(token=token)
    assert (await other.get("/v1/tokens")).json()["tokens"] == listed
    assert (await admin.delete(f"/v1/tokens/{answer['id']}")).status_code == 204
    refused = await other.get("/v1/tokens")
    assert (refused.status_code, refused.headers["WWW-Authenticate"], refused.json()) == (
        401, 'Bearer error="invalid_token"',
        {"error": {
            "code": "service.unauthenticated", "message": "the token is invalid, expired or revoked",
            "hint": "send Authorization: Bearer TOKEN", "link": code_url("service.unauthenticated"),
        }},
    )  # fmt: skip
    assert (await admin.get("/v1/tokens")).json()["tokens"][1] == {**answer, "revoked": True, "state": "revoked"}
    assert (await admin.delete("/v1/tokens/0000")).json()["error"]["code"] == "service.not_found"
    with Database.open(served.service.settings.tenants["default"].store) as database, database.read() as connection:
        events = [json.loads(line) for (line,) in connection.execute(text("SELECT line FROM pdp_audit ORDER BY seq"))]
    by = admin.headers["Authorization"][len("Bearer pdp_") :][:16]
    assert [(event["type"], event["subject"], event["reason"], event["codes"]) for event in events] == [
        ("token.created", by, answer["id"], ["admin"]), ("token.revoked", by, answer["id"], []),
    ]  # fmt: skip


async def test_browser_session_can_read_but_not_change_data(served: ServedApp) -> None:
    bearer = served.client([Scope.AUDIT, Scope.APPROVE, Scope.ADMIN, Scope.ASSERT])
    opened = await bearer.post("/v1/session")
    cookie = opened.headers["Set-Cookie"]
    token = opened.cookies["pdp_session"]
    held, root = [await served.service.tokens.principal(t) for t in (token, bearer.headers["Authorization"][7:])]
    assert held is not None
    assert root is not None

    assert cookie == f"pdp_session={token}; HttpOnly; Path=/; SameSite=strict"
    assert (opened.status_code, opened.content) == (204, b"")
    assert held == Principal(
        root.id, "default", frozenset({Scope.APPROVE, Scope.AUDIT}), root.claims, held.expires_at, BrowserSession.API
    )
    assert root.claims == {**OFFICER, "jti": root.id}
    browser, as_bearer = served.client(token=""), served.client(token=token)
    browser.cookies.set("pdp_session", token)
    in_cookie = served.client(token="")
    in_cookie.cookies.set("pdp_session", bearer.headers["Authorization"][7:])
    answers = [
        await browser.get("/v1/tokens"), await browser.post("/v1/session"), await as_bearer.get("/v1/tokens"),
        await as_bearer.post("/v1/session"), await in_cookie.get("/v1/tokens"), await in_cookie.delete("/v1/session"),
        await browser.delete("/v1/session"), await browser.get("/v1/tokens"),
    ]  # fmt: skip
    assert [answer.status_code for answer in answers] == [403, 401, 401, 401, 401, 401, 204, 401]


async def test_browser_sessions_end_with_their_token(served: ServedApp) -> None:
    admin, bearer = served.client(), served.client()
    token = (await bearer.post("/v1/session")).cookies["pdp_session"]
    await admin.delete(f"/v1/tokens/{bearer.headers['Authorization'][11:27]}")

    assert await served.service.tokens.principal(token) is None
    assert len((await admin.get("/v1/tokens")).json()["tokens"]) == 2


async def test_session_cookie_is_secure_with_https(tmp_path: Path) -> None:
    async with service(tmp_path, public_url="https://pdp.example.com") as served:
        opened = await served.client().post("/v1/session")

    assert opened.headers["Set-Cookie"].endswith("; Path=/; SameSite=strict; Secure")


async def test_service_rejects_invalid_token_requests_over_http(tmp_path: Path) -> None:
    orders: list[tuple[dict[str, Any], str]] = [
        ({"scopes": ["decide"]}, "name is missing"),
        ({"name": "a", "scopes": "decide"}, "scopes must be a list"),
        ({"name": "a", "scopes": ["decide"], "expires_in": "1"}, "expires_in is not valid: Input should be a valid"),
        ({"name": "a", "scopes": ["decide"], "tenant": "b"}, "unknown field 'tenant'"),
        ({"name": "a", "scopes": ["decide"], "claims": {"sub": 1}}, "session: claims.sub is not text"),
    ]  # fmt: skip
    async with service(tmp_path) as served:
        for body, message in orders:
            answer = await served.client().post("/v1/tokens", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "service.bad_request")
            assert answer.json()["error"]["message"].startswith(message)
        client = served.client()
        before = (await client.get("/v1/tokens")).json()["tokens"]
        for grace in ("-1", "1e3", "nan", "9" * 400):
            answer = await client.post(f"/v1/tokens/{before[0]['id']}/rotate", params={"grace": grace})
            assert (answer.status_code, answer.json()["error"]["message"][:18]) == (400, "grace is not valid")
        assert (await client.get("/v1/tokens")).json()["tokens"] == before
