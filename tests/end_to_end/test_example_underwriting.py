"""In the underwriting example, each failing scenario breaks one rule, and runs can be replayed with pinned versions."""

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
    "evidence from another document is rejected": "extraction.foreign_evidence",
    "a verdict that no rule explains is rejected": "validation.unexplained",
    "the same candidate and rule pack have one verdict": "validation.not_reproducible",
    "a submission of another ontology is not validated": "validation.other_ontology",
    "a quote that claims to be issued is not delivered": "composition.not_a_draft",
    "a confidence above one is rejected": "result schema",
    "a risk that fits no band is reported without a band": "classify.out_of_distribution",
    "an undeclared band is rejected": "classify.out_of_distribution",
    "another answer for the same premium in one run is no conversion": "conversion.not_reproducible",
    "a policyholder that the register does not have is a typed error": "not_found",
    "a result with markings is withheld from a subject without clearance": "aggregation.marking_not_cleared",
    "a snapshot of another run does not count as evidence": "evidence.unknown_snapshot",
    "more passages than were asked for are not delivered": "search.too_many",
    "an idempotency key cannot be reused for another policy": "action_staging.refused",
    "a task asks for approval of an action or a decision only": "approval_request.other_subject",
    "a task needs an action that waits for approval": "approval_request.nothing_pending",
    "an action that was not staged is not committed": "commit.unstaged",
    "an action with other staged arguments is not committed": "commit.unstaged",
}
"""For each scenario in which a tool fails, the broken rule or the kind of exception."""


@pytest.fixture(scope="module")
def manifest() -> EffectiveManifest:
    return load_effective(UNDERWRITING / "manifest.yaml", UNDERWRITING / "governance.yaml")


@pytest.fixture(scope="module")
def engine(manifest: EffectiveManifest) -> Iterator[Engine]:
    with EmbeddedEngine.baseline(manifests={manifest.digest: manifest.document}) as opened:
        yield opened


@pytest.fixture
def example() -> ModuleType:
    """Load the example's tools file as a new module."""
    module = ModuleType("underwriting_tools")
    file = UNDERWRITING / "tools.py"
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)  # noqa: S102 - a file of this repository
    return module


@pytest.mark.opa
def test_each_failing_scenario_breaks_exactly_its_named_rule(opa: object) -> None:
    suite = load_suite(UNDERWRITING / "scenarios.yaml")
    with open_suite_engine(suite, "embedded") as engine:
        results = Runner(suite, engine).run_all()

    assert [result.name for result in results if not result.passed] == []
    broken = {
        result.name: failure.details.get("rule", failure.details.get("kind", "result schema"))
        for result in results
        for step in result.steps
        for evaluation in step.evaluations
        if (failure := evaluation.outcome.failure) is not None
    }
    assert broken == RULES


def test_every_tool_pattern_has_a_tool_in_the_example(manifest: EffectiveManifest) -> None:
    patterns = [entry.pattern for entry in manifest.tools.values() if entry.pattern is not None]

    assert set(patterns) == set(Pattern)


def test_replayed_call_uses_the_exchange_rates_of_the_original_run(
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


def test_record_is_looked_up_again_when_the_register_version_changes(
    manifest: EffectiveManifest, engine: Engine, example: ModuleType
) -> None:
    """Records are cached by version for one run. A second run does not use the cache of the first run."""
    versions = iter(("r-1", "r-1", "r-2", "r-2"))
    asked: list[str] = []

    def lookup_policyholder(identifier: str, source: dict[str, Any], asOf: str | None = None) -> Any:  # noqa: N803
        asked.append(identifier)
        return example.Register().lookup_policyholder(identifier, source)

    deployment = example.Deployment(source_versions={"register": lambda: next(versions)})
    pep = Pep(manifest, engine, tools={"lookup_policyholder": lookup_policyholder}, deployment=deployment)
    lookup = {"tool": "lookup_policyholder", "arguments": {"identifier": "ph-1", "source": {"id": "register"}}}

    executed = [pep.call(lookup, SESSION).executed for _ in range(4)]

    assert (executed, asked) == ([True, False, True, False], ["ph-1", "ph-1"])


@pytest.mark.parametrize("kind", ["action", "decision"])
def test_human_task_contains_the_approval_id_and_the_approval_contains_the_task(
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
