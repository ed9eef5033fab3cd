"""The underwriter's agent: by which rule of its pattern each failing scenario fails, and a replay with its pins."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pdp import Approvals, EmbeddedEngine, Engine, MemoryAudit, Pep
from pdp.json import canonical
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.fields import Pattern
from pdp.manifest.load import load_effective
from pdp.workbench.scenarios.files.suite import load_suite
from pdp.workbench.scenarios.running.engines import open_suite_engine
from pdp.workbench.scenarios.running.runner import Runner
from tests.support import ROOT

UNDERWRITING = ROOT / "examples/underwriting"
SESSION: dict[str, Any] = {
    "claims": {"sub": "underwriter-7", "emts": {"register.read": True}, "clearances": ["pii.medium"]},
    "agent": "agent:underwriting",
    "purpose": "underwriting.review",
    "run_id": "run-1",
}
CONVERT = {
    "tool": "convert_premium",
    "arguments": {"value": {"amount": 100, "currency": "EUR"}, "target": {"currency": "TRY"}},
}

RULES = {
    "evidence out of another document proves nothing": "extraction.foreign_evidence",
    "a verdict that no rule explains is none": "validation.unexplained",
    "the same candidate and rule pack have one verdict": "validation.not_reproducible",
    "a submission of another ontology is not validated": "validation.other_ontology",
    "whatever calls itself issued is not delivered as a quote": "composition.not_a_draft",
    "nor is anybody surer than sure": "result schema",
    "a risk that no band knows is said so, and is put into none": "classify.out_of_distribution",
    "a band that was never declared is none": "classify.out_of_distribution",
    "another answer for the same premium in one run is no conversion": "conversion.not_reproducible",
    "what the register does not have is a typed exception": "not_found",
    "what a policy turns out to carry is not handed to who is not cleared for it": "aggregation.marking_not_cleared",
    "a snapshot that this run has not retrieved from is no evidence": "evidence.unknown_snapshot",
    "more passages than were asked for are not delivered": "search.too_many",
    "a key that stands for one policy stands for no other": "action_staging.refused",
    "approval is asked for an action or a decision, and for nothing else": "approval_request.other_subject",
    "what waits for nobody's approval is no subject of a task": "approval_request.nothing_pending",
    "what was not staged is not committed": "commit.unstaged",
    "nor is what was staged otherwise": "commit.unstaged",
}
"""Of every scenario in which a tool fails: the rule, or the kind of exception."""


@pytest.fixture(scope="module")
def manifest() -> EffectiveManifest:
    return load_effective(UNDERWRITING / "manifest.yaml", UNDERWRITING / "governance.yaml")


@pytest.fixture(scope="module")
def engine(manifest: EffectiveManifest) -> Iterator[Engine]:
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as opened:
        yield opened


@pytest.fixture
def example() -> ModuleType:
    """The example's tools file, run anew."""
    module = ModuleType("underwriting_tools")
    file = UNDERWRITING / "tools.py"
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)  # noqa: S102 - our own file
    return module


@pytest.mark.opa
def test_each_failing_scenario_fails_by_the_rule_that_it_is_about(opa: object) -> None:
    suite = load_suite(UNDERWRITING / "scenarios.yaml")
    with open_suite_engine(suite, "embedded") as engine:
        results = Runner(suite, engine).run_all()

    assert [result.name for result in results if not result.passed] == []
    found = {
        result.name: failure.details.get("rule", failure.details.get("kind", "result schema"))
        for result in results
        for step in result.steps
        for evaluation in step.evaluations
        if (failure := evaluation.outcome.failure) is not None
    }
    assert found == RULES


def test_every_pattern_has_a_tool(manifest: EffectiveManifest) -> None:
    patterns = [entry.pattern for entry in manifest.tools.values() if entry.pattern is not None]

    assert set(patterns) == set(Pattern)


def test_a_replay_has_the_rates_of_the_run_that_it_replays(
    manifest: EffectiveManifest, engine: Engine, example: ModuleType
) -> None:
    tools = example.tools()
    live = Pep(manifest, engine, tools=tools, deployment=example.deployment())
    first = live.call(CONVERT, SESSION)
    later = live.call(CONVERT, {**SESSION, "run_id": "run-2"})

    assert (first.result, first.pins) == ({"amount": 4750.0, "currency": "TRY"}, {"ecb": "2026-07-01"})
    assert (later.result, later.pins) == ({"amount": 5000.0, "currency": "TRY"}, {"ecb": "2026-07-02"})

    for evaluation in (first, later):
        replay = Pep(manifest, engine, tools=tools, deployment=example.deployment(evaluation.pins))
        replayed = replay.call(CONVERT, {**SESSION, "run_id": "replay"})
        assert canonical([replayed.result, replayed.pins]) == canonical([evaluation.result, evaluation.pins])


def test_the_register_is_asked_anew_when_its_version_changes(
    manifest: EffectiveManifest, engine: Engine, example: ModuleType
) -> None:
    """Two runs share nothing, and one run remembers what it has asked of one version."""
    versions = iter(("r-1", "r-1", "r-2", "r-2"))
    asked: list[str] = []

    def lookup_policyholder(identifier: str, source: dict[str, Any], asOf: str | None = None) -> Any:  # noqa: N803
        asked.append(identifier)
        return example.Register().lookup_policyholder(identifier, source)

    told = example.Deployment(source_versions={"register": lambda: next(versions)})
    pep = Pep(manifest, engine, tools={"lookup_policyholder": lookup_policyholder}, deployment=told)
    lookup = {"tool": "lookup_policyholder", "arguments": {"identifier": "ph-1", "source": {"id": "register"}}}

    executed = [pep.call(lookup, SESSION).executed for _ in range(4)]

    assert (executed, asked) == ([True, False, True, False], ["ph-1", "ph-1"])


@pytest.mark.parametrize("kind", ["action", "decision"])
def test_a_task_and_its_approval_know_of_each_other(
    manifest: EffectiveManifest, engine: Engine, example: ModuleType, kind: str
) -> None:
    approvals, audit = Approvals(), MemoryAudit()
    pep = Pep(manifest, engine, tools=example.tools(), approvals=approvals, audit=audit)
    emts = {"policies.stage": True, "tasks.write": True, "policies.issue": True}
    session = {**SESSION, "claims": {**SESSION["claims"], "emts": emts}, "idempotency_key": "idm-1"}
    policy = {"policyholder": "ph-1", "premium": {"amount": 1200, "currency": "EUR"}}
    action = {"kind": "issue_policy", "targetSor": "policies", "payload": policy}
    opened = pep.call({"tool": "stage_policy", "arguments": {"action": action}}, session).approval
    assert opened is not None
    subject = {"type": kind, "id": opened.action_id if kind == "action" else opened.decision_id}
    request = {"subject": subject, "queue": "desk", "rationale": "r", "evidence": [{"source": {"id": "sub-7"}}]}
    task, again = (pep.call({"tool": "request_approval", "arguments": request}, session).result for _ in range(2))
    other = {**session, "claims": {**session["claims"], "sub": "underwriter-8"}}
    foreign = pep.call({"tool": "request_approval", "arguments": request}, other)

    assert task == again
    carried = {name: request[name] for name in ("queue", "rationale", "evidence")}
    assert task == {"id": f"task-{subject['id']}", "subject": subject, **carried, "sla": "PT4H", "approval": opened.id}
    assert approvals.get(opened.id).task == {**carried, "sla": "PT4H"}
    assert foreign.outcome.failure is not None
    assert foreign.outcome.failure.details["rule"] == "approval_request.nothing_pending"

    approvals.grant(task["approval"], {"sub": "senior-2", "roles": ["underwriting.approver"]})
    assert pep.call({"tool": "issue_policy", "arguments": policy}, session).result == {"policy_number": "pol-001"}
    assert [
        (event["type"], event["decision_id"]) for event in audit.events if event["type"].startswith("approval.")
    ] == [
        *((f"approval.{step}", opened.decision_id) for step in ("opened", "requested", "granted", "consumed")),
    ]
