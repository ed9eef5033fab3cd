"""`pdp token` creates tokens. A service that uses the same store accepts these tokens."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import SESSION, pdp, written
from tests.support.service import service

NOTE = "note: this change is not recorded; give the application's audit stream with --audit\n"


def stream_of(folder: Path) -> str:
    return (folder / "audit.jsonl").read_text()


async def test_created_token_is_accepted_by_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", "sqlite:///store.db")
    monkeypatch.setenv("LOGNAME", "ann")
    session = written(tmp_path / "session.json", SESSION)
    pdp("db", "upgrade")
    options = ("--scope", "propose", "--scope", "decide", "-s", session, "--expires-in", 60, "--audit", "audit.jsonl")
    made = pdp("token", "create", "agent", *options, "--json")
    shown = made.json
    token = shown.pop("token")

    assert (made.code, made.err) == (0, "")
    assert shown == {
        "id": token[4:20], "tenant": "default", "name": "agent", "scopes": ["decide", "propose"],
        "claims": SESSION["claims"], "created_at": shown["created_at"], "expires_at": shown["expires_at"],
        "revoked": False,
    }  # fmt: skip
    async with service(tmp_path, url="sqlite:///store.db") as served:
        principal = await served.service.tokens.principal(token)
        assert principal is not None
        assert principal.claims == {**SESSION["claims"], "jti": shown["id"]}
    stream = stream_of(tmp_path)
    events = [json.loads(line) for line in stream.splitlines()]
    assert [(event["type"], event["subject"], event["reason"], event["codes"]) for event in events] == [
        ("token.created", "ann", shown["id"], ["decide", "propose"])
    ]
    assert token[20:] not in stream


def test_token_create_reports_invalid_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pdp("db", "upgrade", "sqlite:///store.db")
    store = ("--store", "sqlite:///store.db")

    nobody = pdp("token", "create", "", "--scope", "decide", *store)
    assert (nobody.code, nobody.err) == (
        2, f"{NOTE}error: name: String should have at least 1 character\n"
    )  # fmt: skip
    assert pdp("token", "create", "agent", "--scope", "root", *store).code == 2
    plain = pdp("token", "create", "agent", "--scope", "admin", *store)
    assert (plain.code, plain.out[:4], plain.err) == (0, "pdp_", NOTE)
