"""Recorded requests of the service: stored with their events, decided again, and lost with their key."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pdp.engine.bundle.file import pack_bundle, read_bundle
from pdp.errors import UsageError
from pdp.json import MAX_NUMBER, canonical, digest
from pdp.service.approvals.sweep import _sweep_step
from pdp.service.settings import TenantSettings
from pdp.stores.sql.database import Database
from tests.service.console import signed_in, words_of
from tests.support.bundle_releases import lax_file, strict_file, usual_file
from tests.support.command_line import Done, pdp, written
from tests.support.payments import BUNDLE, EXAMPLE, wire
from tests.support.postgres import DATABASES, empty_database
from tests.support.service import OFFICER, ServedApp, service, tenant_on
from tests.workbench.diff.test_bundle_diff import CLEAR
from tests.workbench.diff.test_causes import changed

KEY = "0123456789abcdef" * 4
FACTS = {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}
ODD = 'Ünï✓ \U0001f4b6 \u202e\u0000 "\\ ***'
CALLS: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    (wire(amount=20_000), FACTS, "ALLOW"),
    (
        wire(reference=ODD),
        {**FACTS, "note": [ODD, MAX_NUMBER, -MAX_NUMBER, 1e-7, 0.1, 5e-324, True, None, {}]},
        "STEP_UP",
    ),
    (wire(amount=MAX_NUMBER), FACTS, "STEP_UP"),
    (wire(), {**FACTS, "sanctions_status": "hit"}, "DENY"),
    ({"tool": "unknown", "arguments": {}}, FACTS, "rejected"),
)


@pytest.fixture(autouse=True)
def _key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "requests.key", KEY + "\n")
    monkeypatch.setenv("PDP_REQUESTS_KEY", KEY)
    monkeypatch.setenv("PDP_PROJECT", str(EXAMPLE / "pdp.yaml"))


def recording(folder: Path, url: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of a service that records requests."""
    given = {"record_requests": True, "requests_key_file": folder / "requests.key", **settings}
    return {"url": url, "tenants": {"default": tenant_on(url, **given)}}


async def decide_calls(served: ServedApp) -> list[str]:
    client, verdicts = served.client(), []
    for number, (proposal, facts, _) in enumerate(CALLS):
        session = {"claims": OFFICER, "facts": facts, "idempotency_key": f"key-{number}", "run_id": f"run-{number % 2}"}
        answer = await client.post("/v1/proposals", json={"proposal": proposal, "session": session, "run": False})
        assert answer.status_code == 200, answer.text
        verdicts.append(answer.json()["verdict"] or "rejected")
    return verdicts


async def recorded(folder: Path, database: str = "sqlite", **settings: Any) -> str:
    """Record all calls in a new database, and return its URL."""
    url = empty_database(database, folder)
    async with service(folder, **recording(folder, url, **settings)) as served:
        assert await decide_calls(served) == [verdict for *_, verdict in CALLS]
    return url


def other_manifest() -> bytes:
    """Return the bundle of the example with a manifest in which a wire needs one more scope."""
    bundle = read_bundle(BUNDLE)
    [document] = json.loads(json.dumps(bundle.data["manifests"])).values()
    document["tools"]["initiate_wire"]["scopes"].append("payments.wire.more")
    data = {**bundle.data, "manifests": {digest(canonical(document)): document}}
    return pack_bundle(release=2, wasm=bundle.wasm, data=data, modules=bundle.modules)


def replayed(url: object, *options: object) -> Done:
    return pdp("audit", "replay", url, "--bundles", BUNDLE, *options)


@pytest.mark.parametrize("database", DATABASES)
async def test_recorded_requests_are_decided_again_with_the_same_answers(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDP_OPA", str(tmp_path / "missing"))
    url = await recorded(tmp_path, database)
    whole, part = replayed(url, "--json"), replayed(url, "--json", "--run", "run-1", "--tool", "initiate_wire")
    later, earlier = replayed(url, "--since", "2999-01-01"), replayed(url, "--json", "--since", "2020-01-01T00:00:00Z")
    lax, usual = tmp_path / "lax.tar.gz", tmp_path / "usual.tar.gz"
    lax.write_bytes(lax_file(2))
    usual.write_bytes(usual_file(9))
    other = tmp_path / "other.tar.gz"
    other.write_bytes(other_manifest())
    backtest, manifest = replayed(url, "--bundle", lax, "--json"), replayed(url, "--bundle", other)
    same = replayed(url, "--bundle", usual)

    assert (whole.code, whole.json["decided"], whole.json["equal"], whole.json["faults"]) == (0, 4, 4, [])
    assert whole.json["left_out"] == {"a check rejected the call": 1}
    assert (part.code, part.json["decided"]) == (0, 2)
    assert (later.code, later.out.splitlines()[0]) == (1, "0 decided again: 0 equal, 0 different")
    assert earlier.json["decided"] == 4
    assert pdp("audit", "verify", url).code == 0
    assert backtest.code == 0
    (group,) = backtest.json["groups"]
    assert (group["direction"], group["count"], group["events"]) == ("loosens", 1, ["event 3"])
    assert group["call"].startswith("initiate_wire")
    assert (group["causes"], backtest.json["no_causes"]) == (
        [],
        f"PDP_OPA names {tmp_path / 'missing'}, which is not an OPA program that can be run",
    )
    assert {"tool": "initiate_wire", "old": "DENY", "new": "STEP_UP", "count": 1} in backtest.json["tools"]
    assert "initiate_wire: ALLOW -> DENY: 1" in manifest.out
    assert "scopes.missing: 0 -> 4" in manifest.out
    assert same.out.splitlines()[0] == "4 decided again: 4 equal, 0 different"


LARGE = f"""_clear if input.context.sanctions_status in {{"clear", "hit"}}

# METADATA
# title: The largest wire is made by hand
# description: People make it.
# custom:
#   code: sanctions.by_hand
deny contains reason.new(rego.metadata.rule(), {{}}) if input.context.arguments.amount == {MAX_NUMBER}
"""


@pytest.mark.opa
async def test_backtest_lists_the_change_that_causes_each_group(tmp_path: Path, opa: Path) -> None:
    def more(document: Any) -> None:
        document["tools"]["lookup_beneficiary"]["scopes"].append("payments.more")

    url = await recorded(tmp_path)
    new = changed(tmp_path, opa, LARGE, more, settings={"hours": 8})
    whole, text_of = replayed(url, "--bundle", new, "--json"), replayed(url, "--bundle", new).out
    # Without the bundle of then, no change is known.
    unknown = pdp("audit", "replay", url, "--bundles", new, "--bundle", new)

    causes = {tuple(group["events"]): group["causes"] for group in whole.json["groups"]}
    assert {events: [[each["sentence"] for each in cause] for cause in some] for events, some in causes.items()} == {
        ("event 3",): [["The helper _clear of sanctions was changed."]],
        ("event 2",): [["A rule of sanctions was added: sanctions.by_hand, which denies. People make it."]],
    }
    assert causes["event 3",][0][0]["text"][0] == f"- {CLEAR}"
    assert f"          - {CLEAR}" in text_of.splitlines()
    assert whole.json["no_causes"] == ""
    assert "causes: no bundle has the revision sha256:" in unknown.out


async def test_bundle_of_then_that_is_missing_is_counted_and_another_answer_is_a_fault(tmp_path: Path) -> None:
    url = await recorded(tmp_path)
    strict = tmp_path / "releases" / "3.tar.gz"
    strict.parent.mkdir()
    strict.write_bytes(strict_file(3))

    missing = pdp("audit", "replay", url, "--bundles", strict.parent)
    with Database.open(url) as database, database.write() as connection:
        connection.execute(text("DELETE FROM pdp_requests WHERE seq = 0"))
    deleted = replayed(url)

    assert missing.code == 1
    assert "left out: 4: no bundle has the revision sha256:" in missing.out
    assert (deleted.code, "left out: 1: the recorded request was deleted" in deleted.out) == (0, True)
    backtest = replayed(url, "--bundle", strict)
    assert "initiate_wire: STEP_UP -> DENY: 2" in backtest.out


TAMPERED = {
    "moved": "UPDATE pdp_requests SET sealed = (SELECT sealed FROM pdp_requests WHERE seq = 1) WHERE seq = 0",
    "changed": "UPDATE pdp_requests SET sealed = CAST(substr(sealed, 1, 40) || x'ff00ff' AS BLOB) WHERE seq = 0",
    "text": "UPDATE pdp_requests SET sealed = 'text' WHERE seq = 0",
    "cut": "UPDATE pdp_requests SET sealed = x'00' WHERE seq = 0",
    "event": """UPDATE pdp_audit SET line = replace(line, '"verdict":"ALLOW"', '"verdict":"DENY"') WHERE seq = 0""",
}


async def test_tampering_and_another_key_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = await recorded(tmp_path)
    for change in TAMPERED.values():
        with Database.open(url) as database, database.write() as connection:
            saved = connection.execute(text("SELECT sealed FROM pdp_requests WHERE seq = 0")).scalar()
            line = connection.execute(text("SELECT line FROM pdp_audit WHERE seq = 0")).scalar()
            connection.execute(text(change))
        done = replayed(url)
        with Database.open(url) as database, database.write() as connection:
            connection.execute(text("UPDATE pdp_requests SET sealed = :saved WHERE seq = 0"), {"saved": saved})
            connection.execute(text("UPDATE pdp_audit SET line = :line WHERE seq = 0"), {"line": line})
        assert (done.code, done.out.count("fault: ")) == (1, 1), (change, done)
        assert "fault: event 0: the recorded request cannot be opened" in done.out
    assert replayed(url).code == 0

    monkeypatch.setenv("PDP_REQUESTS_KEY", KEY[::-1])
    other = replayed(url)
    monkeypatch.delenv("PDP_REQUESTS_KEY")
    destroyed = replayed(url)
    monkeypatch.setenv("PDP_REQUESTS_KEY", KEY)
    unusable = [replayed(*options) for options in ((url, "a.jsonl"), ("a.jsonl",), (url, "--requests", tmp_path))]
    no_folder = replayed("a.jsonl", "--requests", tmp_path / "missing")

    assert (other.code, other.out.count("fault: ")) == (1, 1)
    assert "fault: event 0 and 3 more: the recorded request cannot be opened" in other.out
    assert (no_folder.code, "missing: not a folder" in no_folder.err) == (2, True)
    assert not (tmp_path / "missing").exists()
    assert {(done.code, done.err.count("(--requests) belong together")) for done in unusable} == {(2, 1)}
    assert (destroyed.code, "PDP_REQUESTS_KEY" in destroyed.err) == (2, True)
    with Database.open(url) as database, database.read() as connection:
        stored = connection.execute(text("SELECT sealed FROM pdp_requests")).scalars().all()
    assert not any(b"acct-operating-4412" in sealed for sealed in stored)


async def test_expired_requests_are_swept(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    async with service(tmp_path, **recording(tmp_path, url, requests_days=1e-9)) as served:
        await decide_calls(served)
        await _sweep_step(served.service.tenants["default"])()
    pruned, again = pdp("db", "prune", url, "--json"), replayed(url)

    assert pruned.json["requests"] == 0
    assert (again.code, "left out: 4: the recorded request was deleted" in again.out) == (1, True)


async def test_service_that_cannot_record_denies_and_does_not_start_without_a_key(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    async with service(tmp_path, **recording(tmp_path, url)) as served:
        with Database.open(url) as database, database.write() as connection:
            connection.execute(text("ALTER TABLE pdp_requests RENAME TO gone"))
        client, session = served.client(), {"claims": OFFICER, "facts": FACTS, "idempotency_key": "key-1"}
        answer = await client.post("/v1/proposals", json={"proposal": wire(amount=20_000), "session": session})
        stream = served.service.tenants["default"].stream
        assert (answer.json()["verdict"], answer.json()["codes"]) == ("DENY", ["audit.write_failed"])
        assert stream.last_seq() == -1

    with pytest.raises(ValueError, match="record_requests: set requests_key_file"):
        TenantSettings(project=EXAMPLE / "pdp.yaml", store=url, record_requests=True)
    written(tmp_path / "requests.key", "short")
    with pytest.raises(UsageError, match=r"requests_key_file .*: has fewer than 32 bytes"):
        async with service(tmp_path, **recording(tmp_path, url)):
            pass


async def test_console_shows_a_recorded_request_only_with_the_scope(tmp_path: Path) -> None:
    url = empty_database("sqlite", tmp_path)
    async with service(tmp_path, **recording(tmp_path, url)) as served:
        await decide_calls(served)
        auditor, reader = await signed_in(served), await signed_in(served, ("audit", "requests"))
        hidden, shown = await auditor.get("decisions/1"), await reader.get("decisions/1")
        refused = await auditor.posted("decisions/1", {"bundle": "running"}, page="decisions/1")
        again = await reader.posted("decisions/1", {"bundle": "running"}, page="decisions/1")
        unknown = await reader.posted("decisions/1", {"bundle": "../../x.tar.gz"}, page="decisions/1")
        unrecorded = await reader.get("decisions/4")

    assert "lacks the scope requests" in words_of(hidden)
    assert "acct-operating-4412" not in hidden.text + refused.text
    assert "acct-operating-4412" in shown.text
    assert "Ünï✓ \U0001f4b6" in shown.text
    assert "U+202E" in shown.text
    assert "The answer is the same, byte for byte." in words_of(again)
    assert "No released bundle has this name" in words_of(unknown)
    assert "This request was not recorded" in words_of(unrecorded)
