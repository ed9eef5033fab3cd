"""Recorded requests beside an audit file, and a folder of them that an earlier version of this program has recorded."""

import json
from contextlib import ExitStack, closing
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from pdp import FileAudit, Pep
from pdp.audit.requests import FileRequests
from pdp.engine.bundle.file import read_bundle
from pdp.errors import AuditError
from pdp.workbench.replay import Replay
from tests.support import payments
from tests.support.bundle_releases import lax
from tests.support.command_line import pdp

KEY = b"a known key of the tests, not secret"
RECORDED = Path(__file__).with_name("recorded")
ODD = 'Ünï✓ \U0001f4b6 \u202e\u0000 "\\ \u2028'
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"amount": 20_000},
    {"reference": ODD},
    {"amount": 2**53 - 1},
    {"amount": 0.1},
    {"amount": 1e-7},
    {"amount": "x"},
)


def record(folder: Path) -> None:
    """Record decisions in a folder, as was done for `RECORDED`: `stream/audit.events`, `requests`, and the bundle."""
    (folder / "stream").mkdir(parents=True)
    copyfile(payments.BUNDLE, folder / payments.BUNDLE.name)
    log = FileAudit(folder / "stream/audit.events", requests=FileRequests(folder / "requests", key=KEY, days=36_500))
    with closing(log), payments.engine() as engine:
        pep = Pep(payments.effective(), engine, audit=log)
        for number, changes in enumerate(ARGUMENTS):
            session = payments.session(time=None, request_id=f"{ODD}{number}" if number % 2 else f"req-{number}")
            pep.decide(payments.wire(**changes), session)
        # The enforcement point adds details to these reasons, which are not the policy's.
        claims = {"sub": "officer-123", "emts": ["wrong"], "scope": 7}
        denied = pep.decide(payments.wire(), payments.session(claims=claims))
        assert denied.decision is not None
        assert any("ignored_claims" in reason.details for reason in denied.decision.reasons)


@pytest.mark.parametrize("is_new", [True, False])
def test_requests_of_this_and_of_an_earlier_version_have_the_same_answers(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDP_REQUESTS_KEY", KEY.decode())
    monkeypatch.setenv("PDP_PROJECT", "")
    folder = tmp_path / "new" if is_new else RECORDED
    if is_new:
        record(folder)
    files = (folder / "stream/audit.events", "--requests", folder / "requests", "--bundles", folder)

    done, part = pdp("audit", "replay", *files, "--json"), pdp("audit", "replay", *files, "--tool", "another")

    assert done.code == 0, done
    assert done.json["left_out"] == {"a check rejected the call": 1}
    assert (done.json["equal"], done.json["faults"]) == (6, [])
    assert {each["old"]: each["count"] for each in done.json["tools"]} == {"ALLOW": 3, "DENY": 1, "STEP_UP": 2}
    assert (part.code, part.out) == (1, "0 decided again: 0 equal, 0 different\n")


def test_backtest_hides_sensitive_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDP_OPA", str(tmp_path / "missing"))
    requests = FileRequests(tmp_path / "requests", key=KEY)
    log, manifest = FileAudit(tmp_path / "audit.events", requests=requests), payments.effective()
    facts = {"beneficiary_id": payments.ARGUMENTS["beneficiary_id"], "sanctions_status": "hit"}
    with closing(log), payments.engine() as engine:
        decision = Pep(manifest, engine, audit=log).decide(payments.wire(), payments.session(facts=facts)).decision
    assert decision is not None
    record = (tmp_path / "audit.events").read_bytes(), requests.load()[decision.decision_id]

    def call(sensitive: dict[str, list[str]]) -> str:
        documents = {manifest.digest: manifest.document}
        with ExitStack() as owned:
            then = [read_bundle(payments.BUNDLE)]
            replay = Replay(requests, then, new=lax(), manifests=documents, data={}, sensitive=sensitive, owned=owned)
            return replay.run([record]).groups[0].call

    assert "amount 47500, beneficiary_id bene-acme-441" in call({"initiate_wire": []})
    assert "amount ***, beneficiary_id bene-acme-441" in call({"initiate_wire": ["amount"]})
    assert "amount ***, beneficiary_id ***" in call({"another_tool": []})


def test_record_that_cannot_be_stored_denies_the_call(tmp_path: Path) -> None:
    requests = FileRequests(tmp_path / "requests", key=KEY)
    log = FileAudit(tmp_path / "audit.events", requests=requests)
    with closing(log), payments.engine() as engine:
        pep = Pep(payments.effective(), engine, audit=log)
        assert pep.decide(payments.wire(amount=20_000), payments.session()).allowed
        [today] = (tmp_path / "requests").iterdir()
        with today.open("ab") as file:
            file.write(b"\nincomplete aGFsZg=")
        old = today.with_name("1999-12-31.requests")
        old.touch()
        today.rename(today.with_name("2000-01-01.requests"))
        assert pep.decide(payments.wire(amount=20_000), payments.session()).allowed
        assert not old.exists()
        assert len(requests.load()) == 1
        today.unlink()
        today.mkdir()
        denied = pep.decide(payments.wire(amount=20_000), payments.session())
    events = [json.loads(line) for line in (tmp_path / "audit.events").read_text().splitlines()]

    assert (denied.allowed, denied.codes) == (False, ("audit.write_failed",))
    assert [event["verdict"] for event in events] == ["ALLOW", "ALLOW"]
    with pytest.raises(AuditError, match="shorter than 32 bytes"):
        FileRequests(tmp_path, key=b"short")
