"""`pdp token` creates tokens. A service that uses the same store accepts these tokens."""

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.command_line import SESSION, pdp, written
from tests.support.service import APPROVER, running_service, service


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
        "revoked": False, "state": "active", "warnings": [],
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
        2, "error: name: String should have at least 1 character\n"
    )  # fmt: skip
    assert pdp("token", "create", "agent", "--scope", "root", *store).code == 2
    plain = pdp("token", "create", "agent", "--scope", "admin", *store)
    assert (plain.code, plain.out[:4], plain.err) == (0, "pdp_", "")


SCOPES = ("admin", "approve", "assert", "audit", "decide", "metrics", "propose", "requests")


@pytest.mark.parametrize(
    ("scopes", "claims", "others", "warnings"),
    [
        (["approve"], None, (), ["cannot approve without claims: add --session FILE"]),
        (
            ["decide"], None, (),
            ["cannot propose without claims: add --session FILE, or --scope assert for an application"],
        ),
        (["requests"], None, (), ["`requests` has no effect alone: add --scope audit"]),
        (["assert"], None, (), ["`assert` has no effect alone: add --scope propose"]),
        (["assert", "propose", "approve"], APPROVER, (), ["can state claims and approve: create two tokens"]),
        (["admin", "propose"], APPROVER, (), ["can make tokens that approve its calls: omit --scope admin"]),
        (["audit"], None, ("--expires-in", 366 * 86400), ["is valid for more than a year: set a shorter --expires-in"]),
        (["propose"], {"sub": "a", "scope": "*"}, (), ["`*` in claims is not a wildcard: name each value"]),
        (["assert", "decide", "propose"], None, (), []),
        (["approve", "audit", "requests"], APPROVER, (), []),
    ],
)  # fmt: skip
def test_tokens_that_can_do_nothing_or_too_much_have_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scopes: list[str], claims: object, others: tuple[object, ...],
    warnings: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", "sqlite:///store.db")
    pdp("db", "upgrade")
    session = () if claims is None else ("-s", written(tmp_path / "session.json", {"claims": claims}))

    made = pdp("token", "create", "agent", *(f"--scope={scope}" for scope in scopes), *session, *others)
    listed = pdp("token", "list")

    assert (made.code, made.err) == (0, "".join(f"warning: the token {warning}\n" for warning in warnings))
    assert listed.out.splitlines()[1:] == [f"  warning: {warning}" for warning in warnings]


def test_tokens_of_a_store_are_listed_rotated_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PDP_DATABASE_URL", "sqlite:///store.db")
    monkeypatch.setenv("PDP_AUDIT_KEY", "0123456789" * 4)
    monkeypatch.setenv("LOGNAME", "ann")
    pdp("db", "upgrade")
    assert pdp("token", "list").out == "no tokens\n"
    session = written(tmp_path / "session.json", {"claims": APPROVER})
    options = ("--scope", "approve", "-s", session, "--tenant", "acme", "--expires-in", 86400)
    first = pdp("token", "create", "desk", *options, "--json").json
    second = pdp("token", "rotate", first["id"], "--grace", "1h", "--json").json
    third = pdp("token", "rotate", second["id"], "--json").json
    wrong = (("rotate", second["id"]), ("revoke", "0" * 16), ("rotate", "x", "--grace", "1"))
    failed = [pdp("token", *arguments) for arguments in wrong]
    revoked = pdp("token", "revoke", third["id"])
    listed = pdp("token", "list", "--json")
    lines = pdp("token", "list").out
    monkeypatch.delenv("PDP_AUDIT_KEY")
    unkeyed = pdp("token", "create", "other", "--scope", "audit")

    tokens = [first, second, third]
    secrets = [token.pop("token") for token in tokens]
    assert (revoked.code, revoked.out) == (0, f"revoked {third['id']}\n")
    assert [done.code for done in failed] == [2] * 3
    same = ("name", "tenant", "scopes", "claims")
    assert [[token[name] for name in same] for token in tokens] == [["desk", "acme", ["approve"], APPROVER]] * 3
    assert [(token["id"], token["state"]) for token in listed.json] == [
        (first["id"], "active"), (second["id"], "revoked"), (third["id"], "revoked"),
    ]  # fmt: skip
    ends, made = (datetime.fromisoformat(listed.json[0][name]).timestamp() for name in ("expires_at", "created_at"))
    assert 3600 <= ends - made <= 3600 + time.time() - made
    assert lines.splitlines()[1] == (
        f"{second['id']}  revoked  desk of acme for approver-7: approve; "
        f"{second['created_at']} to {second['expires_at']}"
    )
    assert [secret for secret in secrets if secret[20:] in listed.out + lines] == []
    assert (unkeyed.code, unkeyed.out) == (1, "")
    assert "\n    hint: if the service has `audit_key_file`, set PDP_AUDIT_KEY: export" in unkeyed.err
    assert pdp("token", "list", "--json").json == listed.json
    monkeypatch.setenv("PDP_AUDIT_KEY", "0123456789" * 4)
    events = [json.loads(line) for line in pdp("audit", "show", "sqlite:///store.db", "--json").out.splitlines()]
    created = ("token.created", "ann", ["approve"])
    ended: tuple[str, str, list[str]] = ("token.revoked", "ann", [])
    assert [(event["type"], event["subject"], event["codes"]) for event in events] == [
        created, created, ("token.revoked", "ann", ["after 3600 s"]), created, ended, ended,
    ]  # fmt: skip
    assert [event["reason"] for event in events] == [
        tokens[at]["id"] for at in (0, 1, 0, 2, 1, 2)
    ]  # fmt: skip


@pytest.mark.process
def test_administrator_lists_rotates_and_revokes_tokens_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    with running_service(tmp_path, first_token_file=str(file)) as served:
        first = file.read_text()
        mode = file.stat().st_mode & 0o777
        monkeypatch.setenv("PDP_TOKEN", first.strip())
        place = ("--service", served.url)
        old = served.token(["approve"], APPROVER)
        made = pdp("token", "rotate", old[4:20], *place, "--grace", "2d", "--json").json
        again = pdp("token", "rotate", made["id"], *place)
        failed = pdp("token", "rotate", made["id"], *place)
        revoked = pdp("token", "revoke", old[4:20], *place)
        listed = pdp("token", "list", *place, "--json").json
        stored = pdp("token", "list", "--store", served.store, "--json").json
        audited = served.client(["audit"]).get("/v1/audit").json()

    assert (mode, len(first)) == (0o600, 64)
    assert stored[: len(listed)] == listed
    assert [(token["name"], token["state"], token["scopes"], token["warnings"]) for token in listed] == [
        ("first", "active", [*SCOPES], []),
        ("test", "revoked", ["approve"], []),
        ("test", "revoked", ["approve"], []),
        ("test", "active", ["approve"], []),
    ]
    assert (again.code, again.out[4:20], revoked.code, failed.code) == (0, listed[-1]["id"], 0, 1)
    assert "no active token has this id" in failed.err
    events = [(event["type"], event["subject"], event["reason"], event["codes"]) for event in audited["events"]]
    assert events == [
        ("token.created", "pdp serve", listed[0]["id"], [*SCOPES]),
        ("token.created", listed[0]["id"], made["id"], ["approve"]),
        ("token.revoked", listed[0]["id"], old[4:20], ["after 172800 s"]),
        ("token.created", listed[0]["id"], listed[-1]["id"], ["approve"]),
        ("token.revoked", listed[0]["id"], made["id"], []),
        ("token.revoked", listed[0]["id"], old[4:20], []),
    ]
