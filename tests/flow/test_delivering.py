"""Calls whose result is withheld after the run or whose tool cannot run, decided by a policy that allows all calls."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pdp import Approvals, Deployment, MemoryAudit, Pep, Registry, Verdict
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.patterns.enforcement import EnforcedCall
from pdp.patterns.run import Pin, pinned
from pdp.proposal import Failure, FailureCode
from pdp.stores.actions import ActionState
from pdp.stores.approvals import ApprovalState
from pdp.stores.memory import MemoryIdempotency
from tests.support.desk import CHIEF, SOON, Call, Desk, asked, both_ways, failure, propose, recorded, session
from tests.support.scripted import Scripted, answer, duty, until_approved

MANIFEST = """
manifest_version: 2026.1.0
tools:
  - name: sum_exposure
    version: 1.0.0
    pattern: aggregation
    risk_tier: low
    markings: [internal, pii]
    schema:
      type: object
      required: [objects, window, op]
      properties: {objects: {type: array, items: {$ref: ObjectRef}}, window: {$ref: Window}, op: {enum: [sum]}}
    result_schema: {$ref: Metric}
  - name: find_record
    version: 1.0.0
    pattern: lookup
    risk_tier: low
    markings: []
    state: {reads: [branch]}
    config: [{key: tenant, default: none}]
    schema:
      type: object
      required: [identifier, source]
      properties: {identifier: {type: string, maxLength: 9}, source: {$ref: SoRRef}}
    result_schema: {type: object, properties: {branch: {type: string}}}
  - name: convert_sum
    version: 1.0.0
    pattern: conversion
    risk_tier: low
    schema:
      type: object
      required: [value, target]
      properties:
        value: {type: object, required: [amount], properties: {amount: {type: number}}}
        target: {type: object, required: [currency], properties: {currency: {enum: [EUR]}}}
    result_schema: {type: object, properties: {amount: {type: number}}}
  - name: print_letter
    version: 1.0.0
    effect_class: commit-high
    risk_tier: high
    compensation: print_letter
    approval: {approvers: [chief]}
    idempotency: {required: true}
    safety: {requires: ["env:DESK_PRINTER"]}
    schema: {type: object, required: [text], properties: {text: {enum: [hello]}}}
  - name: send_parcel
    version: 1.0.0
    effect_class: commit-high
    risk_tier: high
    retries: 3
    compensation: call_back
    approval: {approvers: [chief]}
    idempotency: {required: true}
    schema: {type: object, required: [to], properties: {to: {enum: [ben]}}}
  - name: call_back
    version: 1.0.0
    effect_class: commit-high
    risk_tier: medium
    retries: 3
    compensation: send_parcel
    approval: {approvers: [chief]}
    schema: {type: object, required: [to], properties: {to: {enum: [ben]}}}
"""
BROKEN = Failure(
    FailureCode.TOOL_EXECUTION_FAILED, "the tool ran, but its result could not be delivered", {"effect": "done"}
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("delivering") / "manifest.yaml"
    file.write_text(MANIFEST)
    return file


@pytest.fixture(scope="module")
def manifest(file: Path) -> EffectiveManifest:
    return load_effective(file, None)


# Errors after the tool has run


def marking(_: dict[str, Any]) -> dict[str, Any]:
    return answer("ALLOW", duty("mark_result", markings=["internal"]))


@both_ways
def test_error_after_the_tool_ran_withholds_the_result_but_stores_the_outcome(
    base: Pep, works: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: Call
) -> None:
    pep = Pep(base.manifest, Scripted(marking), tools=works.tools())

    def after(*_: Any) -> None:
        raise RuntimeError(works.runs)

    with monkeypatch.context() as broken:
        broken.setattr(EnforcedCall, "after", after)
        ran = call(pep, propose("book_entry"), session())
    again = call(pep, propose("book_entry"), session())

    # The tool had its effect. So the action is committed, the key stores the result, and a repeated call is a replay.
    assert (ran.verdict, ran.executed, ran.result, ran.markings, failure(ran)) == (
        Verdict.ALLOW,
        True,
        None,
        (),
        BROKEN,
    )
    assert ran.action is not None
    assert ran.action.state is ActionState.COMMITTED
    assert (again.executed, again.result, again.markings) == (False, {"number": 1, "account": "cash"}, ("internal",))
    assert works.runs == [("book_entry", 5)]
    assert recorded(pep)[:2] == [("tool.book_entry.dispatch", "ALLOW"), ("tool.book_entry.result", "failed")]
    (logged,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.startswith("a result could not be delivered: RuntimeError\n")
    assert "('book_entry', 5)" not in logged


# A failed call has used its approval


@pytest.mark.parametrize("tool", ["send_parcel", "call_back"], ids=["with a key", "without a key"])
@both_ways
def test_failed_call_needs_a_new_approval_to_run_again(manifest: EffectiveManifest, tool: str, call: Call) -> None:
    works, approvals = Parcels(), Approvals()
    tools = {"send_parcel": works.send, "call_back": works.send}
    pep = Pep(manifest, Scripted(until_approved), tools=tools, approvals=approvals)
    proposal = {"tool": tool, "arguments": {"to": "ben"}}

    approvals.grant(asked(call(pep, proposal, session())).id, CHIEF, SOON)
    failed = call(pep, proposal, session(time=SOON))

    lost = Failure(FailureCode.TOOL_EXECUTION_FAILED, "ConnectionError", {"exception": "ConnectionError"})
    assert (failed.verdict, failure(failed)) == (Verdict.ALLOW, lost)
    assert isinstance(failed.error, ConnectionError)
    # The tool is not idempotent, so it runs once regardless of `retries`.
    assert works.sent == ["ben"]
    again = session(time=SOON)
    if tool == "send_parcel":
        # It is unknown whether the tool had its effect, so a call with the same key neither runs nor opens an approval.
        assert failure(call(pep, proposal, again)) == lost
        again = session(idempotency_key="key-2", time=SOON)
    approval_id = asked(call(pep, proposal, again)).id
    assert works.sent == ["ben"]
    assert [each.state for each in approvals.list()] == [ApprovalState.CONSUMED, ApprovalState.PENDING]
    approvals.grant(approval_id, CHIEF, SOON)
    assert call(pep, proposal, again).result == "parcel 2"
    assert [each.state for each in approvals.list()] == [ApprovalState.CONSUMED] * 2


class Parcels:
    """A tool that fails after it has sent the first parcel."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str) -> str:
        self.sent.append(to)
        if len(self.sent) == 1:
            raise ConnectionError("lost after it was sent")
        return f"parcel {len(self.sent)}"


# A tool that is unavailable uses no key and no approval


@both_ways
def test_unavailable_tool_uses_no_key_or_approval(file: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.delenv("DESK_PRINTER", raising=False)
    registry, approvals = Registry.from_files(str(file)), Approvals()
    registry.bind("print_letter", lambda text: text)
    pep = Pep(
        registry.manifest, Scripted(until_approved), registry=registry, approvals=approvals, keys=MemoryIdempotency()
    )
    letter = {"tool": "print_letter", "arguments": {"text": "hello"}}
    approval = asked(call(pep, letter, session()))
    approvals.grant(approval.id, CHIEF, SOON)
    lacking = call(pep, letter, session(time=SOON))

    assert (lacking.verdict, lacking.executed, failure(lacking)) == (
        Verdict.ALLOW,
        False,
        Failure(
            FailureCode.TOOL_UNAVAILABLE, "print_letter cannot run now: environment variable DESK_PRINTER is not set"
        ),
    )
    assert approvals.get(approval.id).state is ApprovalState.GRANTED
    monkeypatch.setenv("DESK_PRINTER", "lp0")
    ran = call(pep, letter, session(time=SOON))
    assert (ran.executed, approvals.get(approval.id).state) == (True, ApprovalState.CONSUMED)


# Clearances of the caller, and inputs of the tool


@pytest.mark.parametrize(
    ("cleared", "agents", "lacking"),
    [
        pytest.param(["internal", "pii"], [], "", id="the subject is cleared"),
        pytest.param(["internal"], [], "pii", id="the subject is not cleared"),
        pytest.param(..., [], "internal, pii", id="no clearances"),
        pytest.param(None, [], "internal, pii", id="null clearances"),
        pytest.param(["internal", "pii"], [...], "", id="agent without clearances"),
        pytest.param(["internal", "pii"], [["internal"]], "pii", id="agent not cleared"),
        pytest.param(["internal", "pii"], [None], "internal, pii", id="agent with null clearances"),
        pytest.param(
            ["internal", "pii"], [["internal", "pii"], ["pii"]], "internal", id="agent of the agent not cleared"
        ),
        pytest.param(["internal"], [["internal", "pii"]], "pii", id="agent with more clearances"),
    ],
)
def test_result_needs_clearances_of_the_subject_and_all_agents(
    manifest: EffectiveManifest, cleared: Any, agents: list[Any], lacking: str
) -> None:
    claims: dict[str, Any] = {}
    for name, clearances in reversed(list(enumerate([cleared, *agents]))):
        stated = {} if clearances is ... else {"clearances": clearances}
        claims = {"sub": f"person-{name}", **stated, **({"act": claims} if claims else {})}
    metric = {"name": "exposure", "value": 7, "unit": "EUR"}
    pep = Pep(
        manifest,
        Scripted(lambda _: answer()),
        tools={"sum_exposure": lambda **_: metric},
        deployment=Deployment(markings_of=lambda _, name: ["internal", "pii"] if name == "p-2" else ["internal"]),
    )
    arguments = {
        "objects": [{"type": "policy", "id": "p-1"}, {"type": "policy", "id": "p-2"}],
        "window": {"start": "2026-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, "op": "sum",
    }  # fmt: skip
    got = pep.call({"tool": "sum_exposure", "arguments": arguments}, session(claims=claims))

    if not lacking:
        assert got.result == {**metric, "markings": ["internal", "pii"]}
        return
    message = (
        f"aggregation.marking_not_cleared: the objects in the result have markings that the subject is "
        f"not cleared for: {lacking}"
    )
    details = {"exception": "PatternFault", "rule": "aggregation.marking_not_cleared"}
    assert (got.result, failure(got)) == (None, Failure(FailureCode.TOOL_EXECUTION_FAILED, message, details))


def test_looked_up_record_is_cached_separately_for_each_state_and_config(file: Path) -> None:
    registry, asked_for = Registry.from_files(str(file)), []

    def find_record(identifier: str, source: Any, branch: str | None, tenant: str) -> dict[str, Any]:
        asked_for.append((branch, tenant))
        return {"branch": f"{branch} of {tenant}"}

    registry.bind("find_record", find_record)
    pep = Pep(registry.manifest, Scripted(lambda _: answer()), registry=registry)
    proposal = {"tool": "find_record", "arguments": {"identifier": "7", "source": {"id": "crm", "version": "1"}}}
    given: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"branch": "north"}, {}), ({"branch": "south"}, {}), ({"branch": "north", "not_read": 1}, {}), ({}, {}),
        ({"branch": "south"}, {"tenant": "a"}), ({"branch": "south"}, {}), ({"branch": "south"}, {"tenant": "a"}),
    ]  # fmt: skip
    records = [pep.call(proposal, session(state=state, config=config)).result for state, config in given]

    north, south, neither, other = "north of none", "south of none", "None of none", "south of a"
    assert [record["branch"] for record in records] == [north, south, north, neither, other, south, other]
    assert asked_for == [("north", "none"), ("south", "none"), (None, "none"), ("south", "a")]


# Enforcement points with a new deployment


@both_ways
def test_copy_of_an_enforcement_point_with_another_deployment_pins_the_sources_of_that_deployment(
    manifest: EffectiveManifest, call: Call
) -> None:
    def rate(version: str, of_euro: float) -> Deployment:
        return Deployment(sources={"ecb": lambda: Pin(version, {"EUR": of_euro})})

    def convert_sum(value: Any, target: Any) -> dict[str, Any]:
        return {"amount": value["amount"] * pinned("ecb").value[target["currency"]]}

    first = Pep(
        manifest, Scripted(lambda _: answer()), tools={"convert_sum": convert_sum}, deployment=rate("v-1", 2)
    )  # fmt: skip
    proposal = {"tool": "convert_sum", "arguments": {"value": {"amount": 10}, "target": {"currency": "EUR"}}}
    before = call(first, proposal, session())
    other = first.with_changes(deployment=rate("v-2", 3), audit=MemoryAudit())
    same = first.with_changes(audit=MemoryAudit())
    after = [call(pep, proposal, session()) for pep in (other, first, same)]

    assert (before.result, before.pins) == ({"amount": 20}, {"ecb": "v-1"})
    # The copy with another deployment has its own run `run-1` with its own rate. A copy with the same deployment shares
    # the run.
    assert [(each.result["amount"], each.pins["ecb"]) for each in after] == [(30, "v-2"), (20, "v-1"), (20, "v-1")]
    assert other.actions is first.actions
