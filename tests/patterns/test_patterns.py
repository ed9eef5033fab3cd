"""Tools with each of the ten patterns, during calls: the tools of examples/underwriting, and faulty tools."""

import runpy
from dataclasses import replace
from typing import Any

import pytest

from pdp.execution.runner import run_once
from pdp.manifest.load import load_effective
from pdp.patterns.enforcement import EnforcedCall
from pdp.patterns.exceptions import (
    NotFoundError,
    PermissionDeniedError,
    SourceUnavailableError,
    StaleReplicaError,
    ToolException,
)
from pdp.patterns.rule import CallFacts, PatternResult
from pdp.patterns.run import Deployment, Pin, Run, Runs, within_run
from pdp.proposal import Execution
from pdp.stores.actions import ActionState
from pdp.stores.memory import MemoryActions
from tests.support import ROOT

UNDERWRITING = ROOT / "examples/underwriting"
ENTRIES = load_effective(UNDERWRITING / "manifest.yaml", UNDERWRITING / "governance.yaml").tools
EXAMPLE = runpy.run_path(str(UNDERWRITING / "tools.py"))
FUNCTIONS = EXAMPLE["tools"]()

ABOUT = CallFacts(
    caller="underwriter-7", decision_id="dec-1", resource=("tool", "any"), now=1_750_000_000.0,
    time="2025-06-15T15:06:40Z", idempotency_key="idm-1",
    clearances=frozenset({"internal", "own", "pii.medium", "policy", "seen"}),
)  # fmt: skip
SPAN = {"source": {"id": "sub-7"}, "text": "400000 EUR"}
LOOKUP = {"identifier": "ph-1", "source": {"id": "register"}}
PAYLOAD = {"policyholder": "ph-1", "premium": {"amount": 1200, "currency": "EUR"}}
STAGE = {"action": {"kind": "issue_policy", "targetSor": "policies", "payload": PAYLOAD}}
TASK = {
    "subject": {"type": "action", "id": "act-1"},
    "queue": "desk",
    "rationale": "within the guidelines",
    "evidence": [SPAN],
}
AGGREGATE = {
    "objects": [{"type": "policy", "id": "p-1"}, {"type": "policy", "id": "p-2"}],
    "window": {"start": "2026-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"},
    "op": "sum",
}
SEARCH = {"query": "timber substandard", "corpus": {"id": "guidelines"}, "k": 2}
CONVERT = {"value": {"amount": 100, "currency": "EUR"}, "target": {"currency": "TRY"}}


def opened(**changes: Any) -> Run:
    """Return a run with the deployment of the underwriting example."""
    return Runs(replace(EXAMPLE["deployment"](), **changes)).open("run-1", "ann")


def held_call(
    name: str,
    arguments: dict[str, Any],
    run_: Run,
    about: CallFacts = ABOUT,
    actions: MemoryActions | None = None,
    **entry: Any,
) -> EnforcedCall:
    return EnforcedCall(ENTRIES[name].model_copy(update=entry), arguments, run_, about, actions or MemoryActions())


def called(name: str, arguments: dict[str, Any], run_: Run, *, returns: Any = None, **others: Any) -> PatternResult:
    """Make a call in three steps, as the enforcement point does. `returns` replaces the result of the tool."""
    held = held_call(name, arguments, run_, **others)
    execution = held.before()
    if execution is None and returns is not None:
        execution = Execution(result=returns)
    if execution is None:
        with within_run(run_):
            execution = run_once(FUNCTIONS[name], arguments, None)
    return held.after(held.completed(execution))


def broken(checked: PatternResult) -> tuple[str | None, str | None, bool]:
    """Return the violated rule, the effect, and whether the tool was started, from the failure of a call."""
    assert checked.execution.failure is not None
    assert checked.execution.result is None
    details = checked.execution.failure.details
    return details.get("rule", details.get("kind")), details.get("effect"), checked.execution.started


def succeeded(checked: PatternResult) -> Any:
    assert checked.execution.failure is None
    return checked.execution.result


def test_call_with_arguments_of_the_wrong_shape_does_not_run() -> None:
    checked = called("lookup_policyholder", {"identifier": "ph-1"}, opened())

    assert broken(checked) == ("lookup.request_shape", "none", False)
    assert checked.execution.failure is not None
    assert (checked.execution.failure.code, checked.execution.failure.message) == (
        "TOOL_EXECUTION_FAILED", "lookup.request_shape: the arguments do not match the tool's pattern",
    )  # fmt: skip


def test_rejected_call_adds_no_markings_to_its_run() -> None:
    """A run stores only a limited number of markings, so a call that never runs must not add markings."""
    run_, about = opened(), replace(ABOUT, markings=frozenset({"internal"}))
    unknown = {**LOOKUP, "filter": {"retrievalSnapshotId": "snap-9"}}
    for arguments in ({"identifier": "ph-1"}, unknown):
        assert not called("lookup_policyholder", arguments, run_, about=about).execution.started

    assert run_.markings_of(*about.resource) == frozenset()


@pytest.mark.parametrize("result", [None, {}, {"value": 1, "evidence": SPAN, "confidence": 1.1}])
def test_result_of_the_wrong_shape_is_withheld(result: Any) -> None:
    held = held_call("extract_insured_sum", {"source": {"id": "sub-7"}}, opened())
    checked = held.after(Execution(result=result))
    assert broken(checked) == ("extraction.response_shape", None, True)


def test_pattern_does_not_change_the_object_that_the_tool_returned() -> None:
    quote = {"text": "a quote"}
    result = succeeded(called("compose_quote", {"parts": {}, "template": {"id": "quote"}}, opened(), returns=quote))

    assert (result, quote) == ({"text": "a quote", "state": "draft"}, {"text": "a quote"})


def test_result_of_a_tool_without_pattern_is_returned_unchanged() -> None:
    marker = object()
    checked = called("cancel_policy", {"policy_number": "pol-1"}, opened(), returns=marker)
    assert succeeded(checked) is marker


def test_failure_of_a_tool_is_returned_unchanged() -> None:
    checked = called("lookup_policyholder", {**LOOKUP, "identifier": "ph-9"}, opened())

    failure = checked.execution.failure
    assert failure is not None
    assert (failure.code, failure.message, failure.details) == (
        "TOOL_EXECUTION_FAILED",
        "not_found: the register has no such policyholder",
        {"exception": "NotFoundError", "kind": "not_found"},
    )
    assert isinstance(checked.execution.error, NotFoundError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFoundError, "not_found"), (SourceUnavailableError, "source_unavailable"),
        (PermissionDeniedError, "permission_denied"), (StaleReplicaError, "stale_replica"),
    ],
)  # fmt: skip
def test_failure_of_a_lookup_names_the_type_of_the_raised_exception(error: type[ToolException], kind: str) -> None:
    def lookup_policyholder(**_: Any) -> Any:
        raise error("the register is asked later")

    execution = run_once(lookup_policyholder, LOOKUP, None)
    checked = held_call("lookup_policyholder", LOOKUP, opened()).after(execution)

    assert broken(checked) == (kind, None, True)


def test_exception_raised_by_a_pattern_rule_is_a_failure_of_the_call() -> None:
    def anything(kind: str, name: str) -> Any:
        return 7

    checked = called("aggregate_exposure", AGGREGATE, opened(markings_of=anything))
    assert broken(checked)[0] == "patterns.internal_error"


def test_extraction_returns_value_evidence_and_confidence() -> None:
    assert succeeded(called("extract_insured_sum", {"source": {"id": "sub-7"}}, opened())) == {
        "value": {"amount": 400000.0, "currency": "EUR"},
        "evidence": {"source": {"id": "sub-7"}, "start": 39, "end": 49, "text": "400000 EUR"},
        "confidence": 0.98,
    }


VALIDATE = {"candidate": {"sum_insured": 1, "claims": 4}, "rulePack": {"id": "property", "version": "7"}}
COMPOSE = {"parts": {}, "template": {"id": "quote"}}
EXTRACT = {"source": {"id": "sub-7"}}


def extracted(**evidence: Any) -> dict[str, Any]:
    return {"value": {"amount": 1, "currency": "EUR"}, "evidence": {**EXTRACT, **evidence}, "confidence": 1}


def judged(verdict: str, *trace: str) -> dict[str, Any]:
    return {"verdict": verdict, "trace": [{"rule": "r", "verdict": heavy} for heavy in trace]}


def task_of(**task: Any) -> dict[str, Any]:
    return {"id": "task-1", "subject": TASK["subject"], **task}


SNAPSHOT = {"retrievalSnapshotId": "snap-1"}


def spans_of(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"spans": [{"source": {"id": "a"}, **span} for span in spans], "retrievalSnapshotId": "snap-1"}


def converted(target: Any) -> dict[str, Any]:
    return {**CONVERT, "target": target}


BEFORE = [
    ("request_approval", {**TASK, "subject": {"type": "policy", "id": "p-1"}}, "approval_request.other_subject"),
    ("request_approval", {**TASK, "principal": "senior-2"}, "approval_request.addressee"),
    ("request_approval", {name: TASK[name] for name in TASK if name != "queue"}, "approval_request.addressee"),
    ("request_approval", {**TASK, "rationale": ""}, "approval_request.incomplete"),
    ("request_approval", {**TASK, "evidence": []}, "approval_request.incomplete"),
    ("validate_submission", {**VALIDATE, "ontologyPin": "2025.4"}, "validation.other_ontology"),
]  # fmt: skip
AFTER: list[tuple[str, Any, Any, str]] = [
    ("extract_insured_sum", EXTRACT, extracted(source={"id": "sub-8"}), "extraction.foreign_evidence"),
    ("extract_insured_sum", EXTRACT, extracted(start=9, end=3), "evidence.span_reversed"),
    ("extract_insured_sum", EXTRACT, extracted(retrievalSnapshotId="snap-x"), "evidence.unknown_snapshot"),
    *(
        ("validate_submission", VALIDATE, judged(*verdicts), "validation.unexplained")
        for verdicts in (["pass", "warn"], ["block", "pass"], ["block"], ["warn", "block", "warn"])
    ),
    ("compose_quote", COMPOSE, {"text": "a quote", "state": "live"}, "composition.not_a_draft"),
    ("request_approval", TASK, task_of(subject={"type": "action", "id": "act-2"}, sla="PT1H"),
     "approval_request.other_subject"),
    *(("request_approval", TASK, task_of(sla="PT1H", **who), "approval_request.addressee")
      for who in ({"queue": "senior"}, {"principal": "ann"})),
    *(("convert_premium", converted(target), other, "conversion.other_target") for target, other in (
        ({"currency": "TRY"}, {"amount": 1, "currency": "USD"}), ({"currency": "TRY"}, {"amount": 1, "currency": None}),
        ({"currency": "TRY", "amount": 1}, {"amount": True, "currency": "TRY"}),
    )),
    ("search_guidelines", SEARCH, spans_of({}, {}, {}), "search.too_many"),
    ("search_guidelines", SEARCH, spans_of({"retrievalSnapshotId": "snap-2"}), "search.mixed_snapshots"),
    *(("search_guidelines", SEARCH, spans_of(*spans), "search.not_ranked")
      for spans in ([{"score": 0.1}, {"score": 0.9}], [{"score": 0.9}, {}], [{"score": "high"}])),
    ("search_guidelines", SEARCH, {"spans": [], "retrievalSnapshotId": ""}, "search.response_shape"),
    ("search_guidelines", SEARCH, {"spans": []}, "search.response_shape"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "rule"), BEFORE)
def test_call_that_violates_a_pattern_rule_does_not_run(tool: str, arguments: Any, rule: str) -> None:
    assert broken(called(tool, arguments, opened())) == (rule, "none", False)


@pytest.mark.parametrize(("tool", "arguments", "returns", "rule"), AFTER)
def test_result_that_violates_a_pattern_rule_is_withheld(tool: str, arguments: Any, returns: Any, rule: str) -> None:
    # `request_approval` has created a task. The effect of the call is unknown, so the call must not simply be retried.
    effect = "unknown" if tool == "request_approval" else None
    assert broken(called(tool, arguments, opened(), returns=returns)) == (rule, effect, True)


@pytest.mark.parametrize(
    ("tool", "arguments", "returns"),
    [
        ("convert_premium", converted({"currency": "TRY", "amount": 1}), {"amount": 1.0, "currency": "TRY"}),
        ("convert_premium", converted({"currency": "TRY", "digits": 2}), {"amount": 1, "currency": "TRY"}),
        ("convert_premium", converted({"currency": "TRY"}), {"amount": 1}),
        ("convert_premium", converted({"currency": "TRY"}), 1),
        ("convert_premium", converted("TRY"), {"amount": 1, "currency": "USD"}),
        ("search_guidelines", SEARCH, spans_of({"score": 0.9, **SNAPSHOT}, {"score": 0.9, **SNAPSHOT})),
        ("search_guidelines", SEARCH, spans_of()),
    ],
)
def test_result_that_follows_the_pattern_rules_is_returned(tool: str, arguments: Any, returns: Any) -> None:
    assert succeeded(called(tool, arguments, opened(), returns=returns)) == returns


def test_record_is_looked_up_once_per_run_and_returned_as_a_copy() -> None:
    run_ = opened()
    first, second, third = (
        called("lookup_policyholder", LOOKUP, run_, returns=returns) for returns in (None, OTHER, OTHER)
    )

    assert [checked.execution.started for checked in (first, second, third)] == [True, False, False]
    assert succeeded(first) == succeeded(second) == {"number": "ph-1", "name": "Deniz A.", "claims": 1}
    succeeded(second)["name"] = "changed"
    assert succeeded(called("lookup_policyholder", LOOKUP, run_)) == succeeded(third) == succeeded(first)


OTHER = {"number": "ph-1", "name": "Other", "claims": 2}


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({**LOOKUP, "identifier": "ph-2"}, ABOUT),
        ({**LOOKUP, "source": {"id": "register", "version": "r-2"}}, ABOUT),
        ({**LOOKUP, "source": {"id": "archive"}}, ABOUT),
        ({**LOOKUP, "asOf": "2026-01-01T00:00:00Z"}, ABOUT),
        (LOOKUP, replace(ABOUT, caller="underwriter-8")),
    ],
    ids=["identifier", "version", "source", "time", "caller"],
)
def test_lookup_with_other_arguments_or_caller_is_not_cached(arguments: dict[str, Any], about: CallFacts) -> None:
    run_ = opened()
    called("lookup_policyholder", LOOKUP, run_)
    again = called("lookup_policyholder", arguments, run_, about=about, returns=OTHER)
    assert (again.execution.started, succeeded(again)) == (True, OTHER)


def test_new_version_of_the_source_invalidates_cached_records() -> None:
    version = ["r-1"]
    run_ = opened(source_versions={"register": lambda: version[0]})
    called("lookup_policyholder", LOOKUP, run_)
    kept = called("lookup_policyholder", LOOKUP, run_, returns=OTHER)
    version[0] = "r-2"
    anew = called("lookup_policyholder", LOOKUP, run_, returns=OTHER)

    assert (kept.execution.started, anew.execution.started) == (False, True)


def test_record_is_cached_under_the_source_version_from_before_the_lookup() -> None:
    version = ["r-1"]
    run_ = opened(source_versions={"register": lambda: version[0]})
    held = held_call("lookup_policyholder", LOOKUP, run_)
    assert held.before() is None
    version[0] = "r-2"
    held.after(Execution(result=OTHER))

    assert called("lookup_policyholder", LOOKUP, run_).execution.started
    version[0] = "r-1"
    assert succeeded(called("lookup_policyholder", LOOKUP, run_)) == OTHER


def unreachable() -> Any:
    raise ConnectionError


@pytest.mark.parametrize("versions", [{}, {"register": unreachable}, {"register": lambda: ""}])
def test_record_is_not_cached_if_its_source_has_no_version(versions: Any) -> None:
    run_ = opened(source_versions=versions)
    called("lookup_policyholder", LOOKUP, run_)
    assert succeeded(called("lookup_policyholder", LOOKUP, run_, returns=OTHER)) == OTHER


def test_record_with_exceptions_is_not_cached() -> None:
    run_ = opened()
    called("lookup_policyholder", LOOKUP, run_, returns={**OTHER, "exceptions": [{"kind": "stale_replica"}]})
    assert called("lookup_policyholder", LOOKUP, run_).execution.started


def test_cached_records_end_with_their_run() -> None:
    runs = Runs(EXAMPLE["deployment"]())
    called("lookup_policyholder", LOOKUP, runs.open("run-1", "ann"))
    kept = called("lookup_policyholder", LOOKUP, runs.open("run-1", "ann"))
    other = called("lookup_policyholder", LOOKUP, runs.open("run-2", "ann"))
    runs.end("run-1", "ann")
    ended = called("lookup_policyholder", LOOKUP, runs.open("run-1", "ann"))
    alone = [called("lookup_policyholder", LOOKUP, runs.open(None, "ann")).execution.started for _ in range(2)]

    assert (kept.execution.started, other.execution.started, ended.execution.started) == (False, True, True)
    assert alone == [True, True]


def test_validation_verdict_must_be_the_most_severe_verdict_in_its_trace() -> None:
    assert succeeded(called("validate_submission", VALIDATE, opened()))["verdict"] == "warn"


def test_validation_fails_if_it_repeats_a_rule_pack_with_another_verdict() -> None:
    run_ = opened()
    called("validate_submission", VALIDATE, run_)
    passed: dict[str, Any] = {"verdict": "pass", "trace": []}
    other_pack = {**VALIDATE, "rulePack": {"id": "property", "version": "8"}}

    assert broken(called("validate_submission", VALIDATE, run_, returns=passed))[0] == "validation.not_reproducible"
    assert succeeded(called("validate_submission", other_pack, run_, returns=passed)) == passed


def test_validation_accepts_a_candidate_of_the_pinned_ontology() -> None:
    succeeded(called("validate_submission", {**VALIDATE, "ontologyPin": "2026.1"}, opened()))


@pytest.mark.parametrize("construction", ["concrete", "timber"])
def test_classification_without_a_declared_band_is_out_of_distribution(construction: str) -> None:
    arguments = {
        "subject": {
            "policyholder": "ph-1", "sum_insured": {"amount": 1, "currency": "EUR"}, "construction": construction,
        },
        "schema": {"id": "property-risk"},
    }  # fmt: skip
    # For concrete, the tool raises `out_of_distribution`. For timber, it returns a `band` that is not declared.
    undeclared = {"band": "other", "confidence": 1, "rationale": "", "evidence": []}
    returns = None if construction == "concrete" else undeclared

    checked = called("classify_risk", arguments, opened(), returns=returns)
    assert broken(checked)[0] == "classify.out_of_distribution"


def test_compose_tool_returns_a_result_in_draft_state() -> None:
    draft = {"text": "a quote", "state": "draft"}

    assert succeeded(called("compose_quote", COMPOSE, opened(), returns=draft)) == draft


def test_staging_key_returns_its_action_again_and_is_rejected_for_another_action() -> None:
    actions = MemoryActions()
    first, again = (succeeded(called("stage_policy", STAGE, opened(), actions=actions)) for _ in range(2))
    other = {"action": {**STAGE["action"], "targetRef": "pol-9"}}
    assert broken(called("stage_policy", other, opened(), actions=actions)) == ("action_staging.refused", "none", False)

    (staged,) = actions.list()
    assert first == again == {
        "id": staged.id, "kind": "issue_policy", "target": "policies", "state": "staged", "idempotencyKey": "idm-1",
    }  # fmt: skip
    assert (staged.decision_id, staged.state, staged.target) == ("dec-1", ActionState.STAGED, "policies")


@pytest.mark.parametrize(
    ("own", "proposed", "used"),
    [
        ("idm-1", None, "idm-1"),
        ("idm-1", "idm-1", "idm-1"),
        (None, "idm-2", "idm-2"),
        ("derived:sha256:0", "idm-2", "idm-2"),
        ("derived:sha256:0", None, "derived:sha256:0"),
        ("idm-1", "idm-2", "action_staging.other_key"),
        # A key has at most 1,024 characters, as in a session.
        (None, "k" * 1025, "action_staging.key_too_long"),
    ],
)
def test_staged_action_gets_the_key_of_the_application_or_of_the_model(
    own: str | None, proposed: str | None, used: str
) -> None:
    arguments = STAGE if proposed is None else {**STAGE, "idempotencyKey": proposed}
    checked = called("stage_policy", arguments, opened(), about=replace(ABOUT, idempotency_key=own))
    result = checked.execution.result
    assert (result["idempotencyKey"] if result else broken(checked)[0]) == used


def test_staging_call_without_a_key_generates_an_idempotency_key() -> None:
    actions = MemoryActions()
    about = replace(ABOUT, idempotency_key=None)
    results = [succeeded(called("stage_policy", STAGE, opened(), about=about, actions=actions)) for _ in range(2)]

    keys = [action.idempotency_key for action in actions.list()]
    assert [result["idempotencyKey"] for result in results] == keys
    assert len(set(keys)) == len(keys) == 2


def test_staging_tool_rejects_an_action_kind_that_the_tool_does_not_declare() -> None:
    actions = MemoryActions()
    staged = called("stage_policy", STAGE, opened(), actions=actions, commits=("cancel_policy",))
    assert (broken(staged), actions.list()) == (("action_staging.unknown_kind", "none", False), [])


@pytest.mark.parametrize("task", [task_of(), task_of(evidence=[], sla="PT4H"), task_of(rationale="mine")])
def test_approval_task_has_the_requested_fields(task: dict[str, Any]) -> None:
    stated = {name: value for name, value in task.items() if value}

    assert succeeded(called("request_approval", TASK, opened(), returns=task)) == {**TASK, "sla": "PT1H", **stated}


def excused() -> dict[str, Any]:
    return {"approval": ENTRIES["issue_policy"].approval.model_copy(update={"unless_within_limits": True})}


def test_commit_without_approval_needs_an_equal_action_staged_in_the_same_run() -> None:
    run_ = opened()
    issued = {"policy_number": "pol-001"}

    assert broken(called("issue_policy", PAYLOAD, run_, **excused())) == ("commit.unstaged", "none", False)
    succeeded(called("stage_policy", STAGE, run_))
    assert succeeded(called("issue_policy", PAYLOAD, run_, returns=issued, **excused())) == issued
    other = {**PAYLOAD, "policyholder": "ph-2"}
    assert broken(called("issue_policy", other, run_, **excused()))[0] == "commit.unstaged"
    assert broken(called("issue_policy", PAYLOAD, opened(), **excused()))[0] == "commit.unstaged"


def test_commit_with_approval_needs_no_action_staged_in_the_same_run() -> None:
    approved = replace(ABOUT, approved=True)
    issued = {"policy_number": "pol-001"}

    assert succeeded(called("issue_policy", PAYLOAD, opened(), about=approved, returns=issued, **excused())) == issued
    # If the entry always requires an approval, the policy checks the approval before the pattern checks it.
    assert succeeded(called("issue_policy", PAYLOAD, opened(), returns=issued)) == issued


def test_commit_of_a_denied_action_does_not_run() -> None:
    actions = MemoryActions()
    called("stage_policy", STAGE, opened(), actions=actions)
    (staged,) = actions.list()
    actions.move(staged, ActionState.DENIED)
    run_ = opened()

    assert succeeded(called("stage_policy", STAGE, run_, actions=actions))["state"] == "denied"
    assert broken(called("issue_policy", PAYLOAD, run_, **excused()))[0] == "commit.unstaged"


def test_metric_has_the_markings_of_all_objects_that_it_aggregates() -> None:
    checked = called("aggregate_exposure", AGGREGATE, opened())
    result = succeeded(checked)

    assert (result["value"], result["markings"], *checked.markings) == (650000.0, ["pii.medium"], "pii.medium")


@pytest.mark.parametrize("markings_of", [None, lambda *_: None])
def test_metric_over_objects_with_unknown_markings_has_the_markings_of_the_resource(markings_of: Any) -> None:
    run_ = opened(markings_of=markings_of)
    marked = replace(ABOUT, markings=frozenset({"pii.medium"}))

    assert succeeded(called("aggregate_exposure", AGGREGATE, run_, about=marked))["markings"] == ["pii.medium"]
    assert succeeded(called("aggregate_exposure", AGGREGATE, run_))["markings"] == []


def test_markings_of_policy_result_run_and_application_are_joined() -> None:
    run_ = opened()
    run_.mark("policy", "p-2", ["seen"])
    returns = {"name": "exposure", "value": 1, "markings": ["own"]}
    checked = called(
        "aggregate_exposure", AGGREGATE, run_, returns=returns, about=replace(ABOUT, markings=frozenset({"policy"})),
        markings=("own", "pii.medium", "policy", "seen"),
    )  # fmt: skip
    assert succeeded(checked)["markings"] == ["own", "pii.medium", "policy", "seen"]


def test_metric_with_undeclared_markings_is_withheld() -> None:
    run_ = opened()
    run_.mark("policy", "p-2", ["regulated.kvkk"])
    assert broken(called("aggregate_exposure", AGGREGATE, run_)) == ("aggregation.marking_not_allowed", None, True)
    assert (
        broken(called("aggregate_exposure", AGGREGATE, opened(), markings=None))[0] == "aggregation.marking_not_allowed"
    )


def test_metric_is_withheld_if_the_caller_is_not_cleared_for_its_markings() -> None:
    cleared = replace(ABOUT, clearances=frozenset({"pii.medium", "internal"}))
    uncleared = replace(ABOUT, clearances=frozenset({"internal"}))

    succeeded(called("aggregate_exposure", AGGREGATE, opened(), about=cleared))
    checked = called("aggregate_exposure", AGGREGATE, opened(), about=uncleared)
    assert broken(checked)[0] == "aggregation.marking_not_cleared"


def test_conversion_uses_the_rates_from_the_start_of_the_run() -> None:
    rates = {"TRY": 47.5}
    runs = Runs(Deployment(sources={"ecb": lambda: Pin(f"v-{rates['TRY']}", rates)}))
    before_ = runs.open("run-1", "ann")
    rates["TRY"] = 50.0
    later = runs.open("run-2", "ann")

    first = called("convert_premium", CONVERT, before_)
    assert (succeeded(first)["amount"], dict(first.pins)) == (4750.0, {"ecb": "v-47.5"})
    assert succeeded(called("convert_premium", CONVERT, runs.open("run-1", "ann")))["amount"] == 4750.0
    assert succeeded(called("convert_premium", CONVERT, later))["amount"] == 5000.0


def test_conversion_fails_if_its_source_could_not_be_pinned() -> None:
    checked = called("convert_premium", CONVERT, opened(sources={"ecb": unreachable}))
    assert broken(checked)[0] == "source_unavailable"


def test_conversion_repeated_with_the_same_input_must_return_the_same_amount() -> None:
    run_ = opened()
    called("convert_premium", CONVERT, run_)
    other = called("convert_premium", CONVERT, run_, returns={"amount": 1, "currency": "TRY"})
    assert broken(other)[0] == "conversion.not_reproducible"


def test_search_spans_and_later_evidence_name_the_snapshot_of_the_search() -> None:
    run_ = opened()
    found = called("search_guidelines", SEARCH, run_)
    spans, snapshot = succeeded(found)["spans"], succeeded(found)["retrievalSnapshotId"]
    assert [(span["source"]["id"], span["retrievalSnapshotId"]) for span in spans] == [("guide/construction", snapshot)]
    assert found.retrieval_snapshot == snapshot

    returns = {"id": "t", "subject": TASK["subject"], "sla": "PT1H"}
    task = {**TASK, "evidence": [{"source": {"id": "guide/construction"}}, {"source": {"id": "sub-7"}}]}
    evidence = succeeded(called("request_approval", task, run_, returns=returns))["evidence"]
    assert [span.get("retrievalSnapshotId") for span in evidence] == [snapshot, None]


def test_evidence_from_an_unknown_snapshot_is_rejected() -> None:
    run_ = opened()
    snapshot = succeeded(called("search_guidelines", SEARCH, run_))["retrievalSnapshotId"]
    task = {**TASK, "evidence": [{**SPAN, "retrievalSnapshotId": snapshot}]}

    succeeded(called("request_approval", task, run_))
    assert broken(called("request_approval", task, opened())) == ("evidence.unknown_snapshot", "none", False)


def test_found_documents_get_the_markings_of_their_corpus() -> None:
    run_ = opened()
    about = replace(ABOUT, markings=frozenset({"internal"}), resource=("corpus", "guidelines"))
    checked = called("search_guidelines", SEARCH, run_, about=about)

    assert checked.markings == frozenset({"internal"})
    assert run_.markings_of("corpus", "guidelines") == frozenset({"internal"})
    assert run_.markings_of("document", "guide/construction") == frozenset({"internal"})
