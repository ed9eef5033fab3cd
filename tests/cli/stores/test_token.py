"""`pdp token`: what it makes counts in a service on the same store, until it is revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import SESSION, pdp, written
from tests.support.service import service

NOTE = "note: no audit stream records this step; name the application's with --audit\n"


def stream_of(folder: Path) -> str:
    return (folder / "audit.jsonl").read_text()


async def test_a_token_is_made_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", "sqlite:///store.db")
    session = written(tmp_path / "session.json", SESSION)
    pdp("db", "upgrade")
    scopes = ("--scope", "propose", "--scope", "decide")
    audit = ("--by", "ann", "--audit", "audit.jsonl")
    made = pdp("token", "create", "agent", *scopes, "-s", session, "--expires-in", 60, *audit, "--json")
    shown = made.json
    token = shown.pop("token")

    assert (made.code, made.err) == (0, "")
    assert shown == {
        "id": token[4:20], "tenant": "default", "name": "agent", "scopes": ["decide", "propose"],
        "claims": SESSION["claims"], "created_at": shown["created_at"], "expires_at": shown["expires_at"],
        "revoked": False,
    }  # fmt: skip
    assert pdp("token", "list", "--json").json == [shown]
    assert (
        pdp("token", "list").out == f"{shown['id']}  default  agent: decide, propose; expires {shown['expires_at']}\n"
    )
    async with service(tmp_path, url="sqlite:///store.db") as served:
        principal = await served.service.tokens.principal(token)
        assert principal is not None
        assert principal.claims == {**SESSION["claims"], "jti": shown["id"]}

        assert pdp("token", "revoke", shown["id"], *audit).out == f"revoked  {shown['id']}\n"
    async with service(tmp_path, url="sqlite:///store.db") as served:
        assert await served.service.tokens.principal(token) is None
    assert pdp("token", "list").out == f"{shown['id']}  default  agent: decide, propose; revoked\n"
    stream = stream_of(tmp_path)
    events = [json.loads(line) for line in stream.splitlines()]
    assert [(event["type"], event["subject"], event["reason"], event["codes"]) for event in events] == [
        ("token.created", "ann", shown["id"], ["decide", "propose"]), ("token.revoked", "ann", shown["id"], []),
    ]  # fmt: skip
    assert token[20:] not in stream


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pdp("db", "upgrade", "sqlite:///store.db")
    store = ("--store", "sqlite:///store.db")

    assert pdp("token", "list", *store).out == "no token\n"
    unknown = pdp("token", "revoke", "0", *store)
    assert (unknown.code, unknown.err) == (
        2, f"{NOTE}error: no token has that id\n    hint: see: pdp token list\n"
    )  # fmt: skip
    nobody = pdp("token", "create", "", "--scope", "decide", *store)
    assert (nobody.code, nobody.err) == (
        2, f"{NOTE}error: name: has 0 characters\n    hint: 1 to 1024 are admitted\n"
    )  # fmt: skip
    assert pdp("token", "create", "agent", "--scope", "root", *store).code == 2
    plain = pdp("token", "create", "agent", "--scope", "admin", *store)
    assert (plain.code, plain.out[:4], plain.err) == (0, "pdp_", NOTE)
