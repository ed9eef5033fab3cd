"""Runs of agents: which caller a run belongs to, what the run remembers, and when the run ends."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pdp import Deployment, EmbeddedEngine, Evaluation, Pep, Verdict
from pdp.errors import UsageError
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.patterns import run as run_module
from pdp.patterns.run import Pin, pinned
from pdp.stores.approvals import ApprovalState
from tests.support import desk
from tests.support.desk import CHIEF, SOON, Call, Desk, asked, both_ways, propose, recorded, rules, session, staging

MANIFEST = """
manifest_version: 2026.1.0
tools:
  - {name: read_page, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [desk], markings: [internal],
     resource: {type: document, id: $arguments.page, markings: [internal]},
     schema: {type: object, required: [page], properties: {page: {type: string, maxLength: 9}}}}
  - {name: convert_sum, version: 1.0.0, pattern: conversion, risk_tier: low, scopes: [desk],
     schema: {type: object, required: [value, target], properties: {
       value: {type: object, required: [amount], properties: {amount: {type: number}}},
       target: {type: object, required: [currency], properties: {currency: {enum: [EUR]}}}}},
     result_schema: {type: object, properties: {amount: {type: number}}}}
  - {name: find_plain, version: 1.0.0, effect_class: read-internal, risk_tier: low, scopes: [desk], markings: [],
     schema: {type: object, required: [name], properties: {name: {type: string, maxLength: 9}}}}
"""
CLAIMS = {
    "sub": "ann", "emts": {"desk": True}, "clearances": ["internal"],
    "entitlements": {"documents": ["one", "two", "slow", "quick"]},
}  # fmt: skip
CONVERT = {"tool": "convert_sum", "arguments": {"value": {"amount": 10}, "target": {"currency": "EUR"}}}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> EffectiveManifest:
    file = tmp_path_factory.mktemp("runs") / "manifest.yaml"
    file.write_text(MANIFEST)
    return load_effective(file, None)


@pytest.fixture(scope="module")
def engine(manifest: EffectiveManifest) -> Iterator[EmbeddedEngine]:
    with desk.engine(manifest) as engine:
        yield engine


@pytest.fixture
def pep(manifest: EffectiveManifest, engine: EmbeddedEngine) -> Pep:
    """An enforcement point with a source of rates that returns a higher rate on each read."""
    read: list[int] = []

    def rates() -> Pin:
        read.append(1)
        return Pin(f"v-{len(read)}", {"EUR": len(read)})

    tools: dict[str, Callable[..., Any]] = {
        "read_page": lambda page: f"page {page}",
        "convert_sum": lambda value, target: {"amount": value["amount"] * pinned("ecb").value[target["currency"]]},
    }
    return Pep(manifest, engine, tools=tools, deployment=Deployment(sources={"ecb": rates}))


def ours(**changes: Any) -> Any:
    return session(claims=CLAIMS, **changes)


def rule(evaluation: Evaluation) -> tuple[bool, str, str]:
    failure = evaluation.outcome.failure
    assert failure is not None
    return evaluation.executed, failure.details["rule"], failure.details["effect"]


def page(name: str) -> dict[str, Any]:
    return {"tool": "read_page", "arguments": {"page": name}}


@both_ways
def test_tool_does_not_run_if_its_run_is_full(pep: Pep, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.setattr(run_module, "MAX_ENTRIES", 1)
    first, second, again = (call(pep, page(name), ours()) for name in ("one", "two", "one"))

    assert [(each.result, each.markings) for each in (first, again)] == [("page one", ("internal",))] * 2
    assert (rule(second), second.result) == ((False, "run.full", "none"), None)
    assert call(pep, page("two"), ours(run_id="run-2")).result == "page two"


def test_run_records_the_markings_of_a_call_before_its_tool_runs(pep: Pep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_ENTRIES", 1)
    quick: list[Evaluation] = []

    def read_page(page: str) -> str:
        if page == "slow":
            # While this call is running, another call of the same run begins and ends.
            quick.append(pep.call({"tool": "read_page", "arguments": {"page": "quick"}}, ours()))
        return f"page {page}"

    pep = pep.with_changes(tools={"read_page": read_page})

    assert (pep.call(page("slow"), ours()).result, rule(quick[0])) == ("page slow", (False, "run.full", "none"))


def test_result_is_withheld_if_its_run_was_closed_during_the_call(pep: Pep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)

    def read_page(page: str) -> str:
        if page == "slow":
            assert pep.call({"tool": "read_page", "arguments": {"page": "quick"}}, ours(run_id="other")).executed
        return f"page {page}"

    pep = pep.with_changes(tools={"read_page": read_page})
    slow = pep.call(page("slow"), ours())

    assert (rule(slow), slow.result, slow.markings) == ((True, "run.closed", "done"), None, ())


def test_run_with_the_maximum_number_of_entries_rejects_new_actions_but_commits_staged_actions(
    in_memory: Pep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_ENTRIES", 1)
    pep = in_memory
    staged, full = (
        pep.call(staging("pay_small", amount=amount), session(idempotency_key=f"key-{amount}")) for amount in (5, 6)
    )

    assert (staged.result["state"], rule(full)[1:]) == ("staged", ("run.full", "none"))
    assert [pep.call(propose("pay_small", amount=amount), session()).executed for amount in (5, 6)] == [True, False]


@both_ways
def test_calls_in_a_closed_run_are_denied_until_the_run_is_ended(
    pep: Pep, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    before = call(pep, CONVERT, ours())
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    other = call(pep, CONVERT, ours(run_id="other"))
    denied = call(pep, CONVERT, ours())
    pep.end_run("run-1", ours())
    reopened = call(pep, CONVERT, ours())

    assert [(each.result, each.pins) for each in (before, other)] == [
        ({"amount": 10}, {"ecb": "v-1"}), ({"amount": 20}, {"ecb": "v-2"}),
    ]  # fmt: skip
    assert (denied.verdict, denied.codes, denied.result) == (Verdict.DENY, ("run.closed",), None)
    assert [event["verdict"] for event in pep.audit.events][3:6] == [None, "ALLOW", "DENY"]  # type: ignore[attr-defined]
    assert (reopened.result, reopened.pins) == ({"amount": 30}, {"ecb": "v-3"})


def test_call_in_a_closed_run_uses_no_key_and_no_approval(
    in_memory: Pep, works: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pep, approvals = in_memory, rules(in_memory)
    approvals.grant(asked(pep.call(propose("send_letter"), session())).id, CHIEF, SOON)
    assert pep.call(staging("pay_small", amount=4), session(idempotency_key="key-0")).executed
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    assert pep.call(staging("pay_small"), session(run_id="other")).executed
    denied = pep.call(propose("send_letter"), session(time=SOON))
    other = pep.call(propose("send_letter", amount=6), session(time=SOON))

    assert [(each.verdict, each.codes) for each in (denied, other)] == [(Verdict.DENY, ("run.closed",))] * 2
    assert [approval.state for approval in approvals.list()] == [ApprovalState.GRANTED]
    assert recorded(pep)[-3:] == [
        ("tool.send_letter.dispatch", "ALLOW"), ("tool.send_letter.dispatch", "DENY"),
        ("tool.send_letter.dispatch", "DENY"),
    ]  # fmt: skip
    pep.end_run("run-1", session())
    assert pep.call(propose("send_letter"), session(time=SOON)).executed
    assert works.runs == [("send_letter", 5)]


def test_call_without_pattern_is_allowed_in_a_closed_run(
    manifest: EffectiveManifest, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_RUNS", 1)
    pep = Pep(manifest, engine, tools={"find_plain": lambda name: name, "convert_sum": lambda **_: {"amount": 1}})
    for run in ("run-1", "other"):
        assert pep.call(CONVERT, ours(run_id=run)).executed

    assert pep.call({"tool": "find_plain", "arguments": {"name": "one"}}, ours()).result == "one"


def test_run_of_a_caller_ends_only_if_the_same_caller_ends_it(pep: Pep) -> None:
    other = ours().with_changes(claims={**CLAIMS, "sub": "ben"})
    first, theirs = pep.call(CONVERT, ours()), pep.call(CONVERT, other)
    pep.end_run("run-1", other)
    going_on = pep.call(CONVERT, ours())
    pep.end_run("run-1", ours())
    pep.end_run("run-1", ours())
    reopened = pep.call(CONVERT, ours())

    assert [each.pins["ecb"] for each in (first, theirs, going_on, reopened)] == ["v-1", "v-2", "v-1", "v-3"]


def test_run_of_a_manifest_without_labels_can_end_if_the_ledger_fails(pep: Pep) -> None:
    unusable: Any = SimpleNamespace(blocking=False, write=None)
    before = pep.call(CONVERT, ours())
    pep.with_changes(ledger=unusable).end_run("run-1", ours())
    reopened = pep.call(CONVERT, ours())

    assert [each.pins["ecb"] for each in (before, reopened)] == ["v-1", "v-2"]


@pytest.mark.parametrize("run_id", ["", None, 7])
def test_run_without_id_cannot_be_ended(pep: Pep, run_id: Any) -> None:
    with pytest.raises(UsageError) as caught:
        pep.end_run(run_id, ours())
    assert str(caught.value) == "run_id has to be a non-empty text (pass the `run_id` of the sessions)"
