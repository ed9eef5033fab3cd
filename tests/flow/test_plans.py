"""Plans: the rules of its tool check each step of a plan, and a planning policy decides on the whole plan."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pdp import AgentLoop, MemoryAudit, Pep, Verdict
from pdp.errors import AuditError, UsageError
from pdp.flow.preview import PlanEvaluation
from pdp.json import canonical
from pdp.loop.agent_loop import ModelRequest, Turn
from pdp.model_calls import ToolCall
from tests.support.desk import FailingAudit, events

MANIFEST = """
manifest_version: 2026.1.0
tools:
  - name: read_note
    effect_class: pure
    risk_tier: low
    schema: {type: object, required: [note], properties: {note: {type: integer}, pages: {type: integer}}}
    invariants:
      - {id: FEW_PAGES, rule: At most three pages, correct: {set: {pages: 3}},
         check: "!has(call.pages) || call.pages <= 3"}
      - {id: NOT_TWICE, rule: Each note once, correct: prune,
         check: "size(plan.filter(s, s.tool == 'read_note' && s.arguments.note == call.note)) <= 1"}
      - {id: NO_ZERO, rule: There is no note 0, check: call.note != 0}
  - name: write_note
    effect_class: pure
    risk_tier: low
    schema: {type: object, required: [note], properties: {note: {type: integer}}}
"""
RULES = {
    "READ_FIRST": {"rule": "Nothing is written unread", "tool": "write_note", "only_after": ["read_note"]},
    "ONE_WRITE": {"rule": "One note is written", "tool": "write_note", "at_most": 1},
    "REVIEWED": {"rule": "A review reads", "purposes": ["review"], "requires": ["read_note"]},
}
SESSION = {"claims": {"sub": "ann"}, "purpose": "office"}


@pytest.fixture(scope="module")
def pep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pep]:
    file: Path = tmp_path_factory.mktemp("plans") / "manifest.yaml"
    file.write_text(MANIFEST)
    pep = Pep.from_files(str(file), data={"directory": {"planning": RULES}}, tools={"read_note": lambda **_: "read"})
    yield pep
    pep.engine.close()


def waiting(pep: Pep, steps: Any, session: Any) -> PlanEvaluation:
    return pep.plan(steps, session)


def asynchronously(pep: Pep, steps: Any, session: Any) -> PlanEvaluation:
    return asyncio.run(pep.aplan(steps, session))


both_ways = pytest.mark.parametrize("plan", [waiting, asynchronously])
Plan = Callable[..., PlanEvaluation]


def read(note: int, **more: Any) -> dict[str, Any]:
    return {"tool": "read_note", "arguments": {"note": note, **more}}


def write(note: int) -> dict[str, Any]:
    return {"tool": "write_note", "arguments": {"note": note}}


@both_ways
def test_plan_that_follows_every_planning_rule_is_acceptable(pep: Pep, plan: Plan) -> None:
    checked = plan(pep, [read(1, pages=9), read(1), {**write(1), "step_name": "save"}], SESSION)

    assert checked.acceptable
    assert checked.plan == [read(1, pages=3), {**write(1), "step_name": "save"}]
    assert checked.checked.explained() == (
        "step 1: transformed: FEW_PAGES: At most three pages (corrected: pages)",
        "step 2: pruned: NOT_TWICE: Each note once",
    )
    assert checked.decision.verdict is Verdict.ALLOW


@both_ways
def test_policy_decides_only_on_the_accepted_steps(pep: Pep, plan: Plan) -> None:
    checked = plan(pep, [write(1), read(1), write(2)], SESSION)

    assert (checked.acceptable, checked.checked.valid, checked.decision.verdict) == (False, True, Verdict.DENY)
    assert [(reason.code, reason.details.get("rule")) for reason in checked.decision.reasons] == [
        ("planning.out_of_order", "READ_FIRST"), ("planning.too_many", "ONE_WRITE"),
    ]  # fmt: skip


@pytest.mark.parametrize(("purpose", "acceptable"), [("office", True), ("review", False), (None, False)])
def test_planning_rule_for_a_purpose_applies_if_session_has_no_purpose(
    pep: Pep, purpose: str | None, acceptable: bool
) -> None:
    checked = pep.plan([], {**SESSION, "purpose": purpose})

    assert checked.acceptable is acceptable


def test_plan_with_a_rejected_step_is_unacceptable_even_if_policy_allows_the_other_steps(pep: Pep) -> None:
    checked = pep.plan([read(0), read(1)], SESSION)

    assert (checked.acceptable, checked.decision.verdict, checked.plan) == (False, Verdict.ALLOW, [read(1)])
    assert checked.checked.explained() == ("step 1: rejected: INVALID_PAYLOAD: NO_ZERO: There is no note 0",)


@both_ways
def test_each_plan_step_is_recorded_before_the_decision_on_the_plan(pep: Pep, plan: Plan) -> None:
    """The tool registry document requires that every proposal is logged with the version of the manifest."""
    used = pep.with_changes(audit=MemoryAudit())
    steps = [{**read(1, pages=9), "step_name": "look"}, read(1), read(0), {"tool": "erase"}, "{", write(1)]
    checked = plan(used, steps, {**SESSION, "purpose": "review", "request_id": "req-1", "run_id": "run-1"})

    *proposals, decided = events(used)
    assert [(event["type"], event["status"], event["rejection"], event["step_name"]) for event in proposals] == [
        ("tool.read_note.planned", "transformed", None, "look"),
        ("tool.read_note.planned", "transformed", None, None),
        ("tool.read_note.planned", "rejected", "INVALID_PAYLOAD", None),
        ("tool.unknown.planned", "rejected", "INVALID_TOOL_NAME", None),
        ("tool.unknown.planned", "rejected", "INVALID_PAYLOAD", None),
        ("tool.write_note.planned", "accepted", None, None),
    ]
    assert [event["in_manifest"] for event in proposals] == [True, True, True, False, None, True]
    assert proposals[0]["arguments_digest"] == used.audit.digest(canonical({"note": 1, "pages": 3}))
    assert (proposals[2]["reason"], proposals[3]["reason"]) == (
        "NO_ZERO: There is no note 0", "'erase' is not a tool of manifest 2026.1.0",
    )  # fmt: skip
    for event in (*proposals, decided):
        assert (event["manifest_version"], event["subject"], event["request_id"], event["run_id"]) == (
            "2026.1.0", "ann", "req-1", "run-1",
        )  # fmt: skip
        assert event["outcome"] == "not_executed"
    assert (decided["type"], decided["verdict"], decided["status"]) == ("plan.decided", "ALLOW", "rejected")
    assert decided["decision_id"] == checked.decision.decision_id
    assert decided["arguments_digest"] == used.audit.digest(canonical(checked.plan))


def test_denied_plan_is_recorded_with_its_codes(pep: Pep) -> None:
    used = pep.with_changes(audit=MemoryAudit())
    checked = used.plan([write(1), read(1)], SESSION)

    decided = events(used)[-1]
    assert (decided["verdict"], decided["status"], decided["rejection"], decided["codes"]) == (
        "DENY", "rejected", "POLICY_VIOLATION", ["planning.out_of_order"],
    )  # fmt: skip
    assert checked.decision.bundle_revision == decided["bundle_revision"]


def test_plan_that_cannot_be_recorded_is_denied(pep: Pep) -> None:
    full = pep.with_changes(audit=FailingAudit(AuditError("the disk is full"), takes=1))
    checked = full.plan([read(1), write(1)], SESSION)

    assert (checked.acceptable, checked.decision.codes) == (False, ("audit.write_failed",))


def test_each_call_of_an_accepted_plan_is_still_decided(pep: Pep) -> None:
    used = pep.with_changes(audit=MemoryAudit())
    checked = used.plan([read(1), read(2)], SESSION)
    in_plan = {**SESSION, "plan": checked.plan}

    assert used.call(read(1), in_plan).result == "read"
    assert used.call({"tool": "read_note", "arguments": {"note": 2}}, in_plan).result == "read"
    assert used.call(read(2, pages=1), in_plan).pruned


def test_call_of_a_plan_is_recorded_with_its_step_name(pep: Pep) -> None:
    steps = [read(1), {**read(2, pages=9), "step_name": "look it up"}, {**write(1), "step_name": "save"}]
    in_plan = {**SESSION, "plan": pep.plan(steps, SESSION).plan}

    def name_of(proposal: dict[str, Any], **ids: Any) -> str | None:
        return pep.call(proposal, in_plan, **ids).trace.step_name

    assert [name_of(call) for call in (read(1), read(2, pages=3), write(1), write(2))] == [
        None,
        "look it up",
        "save",
        None,
    ]
    # A step name from the application takes precedence over the step name in the plan.
    assert name_of(write(1), step_name="mine") == "mine"
    assert name_of({"name": "write_note", "arguments": write(1)["arguments"]}) == "save"
    model = iter((Turn(calls=(ToolCall("c1", "write_note", write(1)["arguments"]),)), Turn("done")))
    assert AgentLoop(pep, lambda _: next(model), in_plan).run("Go.").evaluations[0].trace.step_name == "save"


def test_equal_calls_are_pruned_only_if_their_session_has_a_plan(pep: Pep) -> None:
    """Only calls of a plan are checked for duplicates, so two calls with the same arguments both run without a plan."""
    turn = Turn(calls=(ToolCall("c1", "read_note", {"note": 1}), ToolCall("c2", "read_note", {"note": 1})))

    def model(request: ModelRequest) -> Turn:
        return Turn("done") if request.messages[-1].role == "tool" else turn

    def looped(**session: Any) -> list[tuple[bool, bool]]:
        evaluations = AgentLoop(pep, model, {**SESSION, **session}).run("Read.").evaluations
        return [(each.executed, each.pruned) for each in evaluations]

    called = [pep.call(read(1), SESSION) for _ in range(2)]

    assert [(each.executed, each.pruned) for each in called] == [(True, False)] * 2
    assert looped() == [(True, False)] * 2
    assert looped(plan=[read(1)]) == [(True, False)] * 2
    # The call is not a step of the plan, so it is checked as an additional last step, which duplicates the first step.
    assert looped(plan=[read(1, pages=2)]) == [(False, True)] * 2


def test_malformed_plan_raises_a_usage_error(pep: Pep) -> None:
    faults = []
    for steps, session in (("read", SESSION), ([read(1)] * 101, SESSION), ([], None)):
        with pytest.raises(UsageError) as caught:
            pep.plan(steps, session)
        faults.append(caught.value.message)

    assert faults == [
        "a plan must be a list of proposals, not str", "the plan has 101 steps, but at most 100 are allowed",
        "the call has no session",
    ]  # fmt: skip


def test_plan_is_denied_if_the_engine_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(MANIFEST)
    pep = Pep.from_files(str(file))
    pep.engine.close()
    checked = pep.plan([read(1)], SESSION)

    assert (checked.acceptable, checked.decision.codes) == (False, ("engine.unavailable",))
