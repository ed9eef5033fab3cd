"""A whole plan is checked with the four invariants of the tool contract document, from a manifest and from Python."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.contract.checks import Checked
from pdp.contract.compiled import CompiledManifest
from pdp.contract.invariants import DROP_STEP, Resolution, ToolInvariant, Trip
from pdp.contract.plan import CheckedPlan, PlanStep, validate_plan
from pdp.contract.registry.registry import Registry
from pdp.contract.registry.tool_contract import ToolContract
from pdp.contract.request import check
from pdp.errors import UsageError
from pdp.manifest.load import load_effective
from pdp.proposal import Proposal, Rejection, RejectionCode, Status
from pdp.session import Session
from tests.support import ROOT

SESSION = Session(claims={"sub": "clinician-7"})
TOOL = "retrieve_evidence"
RULES = {
    "MUTUAL_EXCLUSIVE_SUBQUESTION_FIELDS": "Cannot use both subquestion_id and subquestion_ids in same step",
    "BUNDLED_REQUIRES_WEB_SEARCH": "Steps using subquestion_ids must have web_search=True",
    "SINGLE_BUNDLED_STEP_PER_PLAN": "At most one retrieve_evidence step with subquestion_ids per plan",
    "NO_DUPLICATE_IDENTICAL_CALLS": "No duplicate (query, web_search) combinations within plan",
}
EXCLUSIVE, BUNDLES_SEARCH, SINGLE, DUPLICATE = (f"{name}: {rule}" for name, rule in RULES.items())


def not_both(call: dict[str, Any], state: Any, config: Any) -> bool:
    return not (call.get("subquestion_id") is not None and call.get("subquestion_ids") is not None)


def bundled_has_web_search(call: dict[str, Any], state: Any, config: Any) -> bool:
    return call.get("subquestion_ids") is None or call.get("web_search") is True


def enable_web_search(call: dict[str, Any], state: Any, config: Any) -> Any:
    return {**call, "web_search": True}, True


def one_bundled_step(call: dict[str, Any], state: Any, config: Any) -> bool:
    bundled = [step for step in state["plan"] if step["arguments"].get("subquestion_ids") is not None]
    return call.get("subquestion_ids") is None or len(bundled) <= 1


def calls_are_unique(call: dict[str, Any], state: Any, config: Any) -> bool:
    def key(arguments: dict[str, Any]) -> Any:
        return arguments["query"], arguments.get("web_search") is True

    return [key(step["arguments"]) for step in state["plan"] if step["tool"] == TOOL].count(key(call)) <= 1


def drop(*_: Any) -> Any:
    return DROP_STEP


def in_python() -> CompiledManifest:
    checks = (not_both, bundled_has_web_search, one_bundled_step, calls_are_unique)
    corrections = (None, enable_web_search, drop, drop)
    registry = Registry()
    registry.register_contract(
        ToolContract(
            name=TOOL,
            schema={
                "subquestion_id": "Optional[str]",
                "subquestion_ids": "Optional[list[str]]",
                "web_search": "Optional[bool]",
                "query": "str",
            },
            invariants=[
                ToolInvariant(name, rule, function, correct)
                for (name, rule), function, correct in zip(RULES.items(), checks, corrections, strict=True)
            ],
            description="Retrieve clinical evidence.",
        ),
        effect_class="read-internal",
        scopes=["clinical.evidence.read"],
    )
    return registry.compiled


def in_a_manifest() -> CompiledManifest:
    return CompiledManifest(load_effective(ROOT / "examples/clinical/manifest.yaml"))


MANIFESTS = {"manifest": in_a_manifest(), "python": in_python()}


def step(query: str = "q", **arguments: Any) -> dict[str, Any]:
    return {"tool": TOOL, "arguments": {"query": query, **arguments}}


def checked(*steps: Any, where: str = "manifest") -> CheckedPlan:
    return validate_plan(steps, SESSION, MANIFESTS[where])


def shown(step: PlanStep) -> tuple[Any, ...]:
    return step.position, step.name, step.status, step.proposal, step.rejection, step.trips


BUNDLED: dict[str, Any] = {"subquestion_ids": ["a", "b"]}


@pytest.mark.parametrize("where", MANIFESTS)
@pytest.mark.parametrize(
    ("steps", "plan", "explained"),
    [
        pytest.param([], [], [], id="an empty plan"),
        pytest.param([step(subquestion_id="a")], [step(subquestion_id="a")], [], id="a valid plan"),
        pytest.param([step(subquestion_id="a", **BUNDLED, web_search=True)], [],
            [f"step 1: rejected: INVALID_PAYLOAD: {EXCLUSIVE}"], id="both kinds: rejected"),
        pytest.param([step(**BUNDLED), step(**BUNDLED, web_search=False, subquestion_id=None)],
            [step(**BUNDLED, web_search=True)],
            [f"step 1: transformed: {BUNDLES_SEARCH} (corrected: web_search)", f"step 2: pruned: {SINGLE}"],
            id="corrected, and the second one pruned"),
        pytest.param([step("q"), step("r"), step("q", web_search=False), step("q", web_search=True), step("q")],
            [step("q"), step("r"), step("q", web_search=True)], [f"step {at}: pruned: {DUPLICATE}" for at in (3, 5)],
            id="first of several duplicates survives"),
        pytest.param([step("q", web_search=True), step("q", **BUNDLED)], [step("q", web_search=True)],
            [f"step 2: pruned: {DUPLICATE}"], id="step corrected into a duplicate is pruned"),
        pytest.param([step(subquestion_id="a", **BUNDLED, web_search=True), step("r", **BUNDLED, web_search=True)],
            [step("r", **BUNDLED, web_search=True)], [f"step 1: rejected: INVALID_PAYLOAD: {EXCLUSIVE}"],
            id="rejected step does not count as the first"),
    ],
)  # fmt: skip
def test_plan_steps_are_accepted_corrected_pruned_or_rejected(
    where: str, steps: list[Any], plan: list[Any], explained: list[str]
) -> None:
    result = checked(*steps, where=where)

    assert (result.plan, list(result.explained())) == (plan, explained)
    assert result.valid == (not any("rejected" in line for line in explained))
    assert list(map(shown, checked(*result.plan, where=where).steps)) == [
        (at, None, Status.ACCEPTED, Proposal.read(proposal), None, ()) for at, proposal in enumerate(plan)
    ]


def test_check_of_a_plan_lists_the_outcome_of_every_step() -> None:
    result = checked({"tool_name": TOOL, "payload": {"query": "q", **BUNDLED}, "step_name": "first"}, {"tool": "other"})
    rule = "BUNDLED_REQUIRES_WEB_SEARCH"
    correction = Trip(rule, RULES[rule], Resolution.CORRECTED, ("web_search",))
    proposal = Proposal.read(step(**BUNDLED, web_search=True))
    rejection = Rejection(RejectionCode.INVALID_TOOL_NAME, "'other' is not a tool of manifest 1.0.0")

    assert (result.valid, result.plan) == (False, [{**step(**BUNDLED, web_search=True), "step_name": "first"}])
    assert list(map(shown, result.steps)) == [
        (0, "first", Status.TRANSFORMED, proposal, None, (correction,)),
        (1, None, Status.REJECTED, None, rejection, ()),
    ]


@pytest.mark.parametrize("bad", [None, "text", {"tool": TOOL, "extra": 1}, {"tool": TOOL, "arguments": {"query": 1}}])
def test_malformed_plan_step_is_rejected(bad: Any) -> None:
    result = checked(bad, step())

    assert [step.status.value for step in result.steps] == ["rejected", "accepted"]
    assert result.steps[0].rejection is not None
    assert result.steps[0].rejection.code == "INVALID_PAYLOAD"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"tool": TOOL}, "a plan must be a list of proposals, not dict"),
        ([step()] * 101, "the plan has 101 steps, but at most 100 are allowed (split it)"),
    ],
)
def test_invalid_plan_is_a_usage_error(steps: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate_plan(steps, SESSION, MANIFESTS["manifest"])

    assert str(caught.value) == message


def passes_alone(call: dict[str, Any], plan: list[Any]) -> bool:
    """Return whether the call passes the checks if it is proposed alone, in a session that has this plan."""
    return isinstance(check(Proposal.read(call), SESSION.with_changes(plan=plan), MANIFESTS["manifest"]), Checked)


FIRST, SECOND = step("q", **BUNDLED, web_search=True), step("r", **BUNDLED, web_search=True)


@pytest.mark.parametrize(
    ("call", "plan", "goes_on"),
    [
        pytest.param(FIRST, [], True, id="no plan"),
        pytest.param(FIRST, [FIRST, SECOND], True, id="the first"),
        pytest.param(SECOND, [FIRST, SECOND], False, id="the second"),
        pytest.param(SECOND, [{"tool_name": TOOL, "payload": FIRST["arguments"]}], False, id="after the whole plan"),
        pytest.param(step("q", **BUNDLED), [FIRST, SECOND], True, id="equal after its correction"),
        pytest.param(step("q", **BUNDLED), [step("q", **BUNDLED), SECOND], True, id="equal before its correction"),
    ],
)
def test_call_is_checked_against_the_plan_in_its_session(call: Any, plan: list[Any], goes_on: bool) -> None:
    assert passes_alone(call, plan) == goes_on


STEPS = st.builds(
    lambda query, extra: step(query, **extra),
    st.sampled_from(["q", "r"]),
    st.fixed_dictionaries(
        {},
        optional={
            "subquestion_id": st.sampled_from([None, "a"]),
            "subquestion_ids": st.sampled_from([None, ["a"], ["b"]]),
            "web_search": st.sampled_from([None, True, False]),
        },
    ),
)


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=5))
def test_checked_plan_passes_a_second_check_without_changes(steps: list[Any]) -> None:
    result = checked(*steps)
    again = checked(*result.plan)
    bundled = [step for step in result.plan if step["arguments"].get("subquestion_ids") is not None]
    keys = [(step["arguments"]["query"], step["arguments"].get("web_search") is True) for step in result.plan]

    assert (again.plan, again.explained(), again.valid) == (result.plan, (), True)
    assert checked(*steps) == result == checked(*steps, where="python")
    assert (len(bundled) <= 1, len(keys) - len(set(keys))) == (True, 0)
