"""The clinical example of the tool contract document: its functions get config and state from the registry."""

from types import ModuleType
from typing import Any

import pytest

from pdp import Pep
from pdp.contract.registry.registry import Registry
from tests.support import ROOT

CLINICAL = ROOT / "examples/clinical"
SESSION: dict[str, Any] = {
    "claims": {"sub": "clinician-7", "emts": {"clinical.evidence.read": True}},
    "purpose": "clinical.answer",
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    module = ModuleType("clinical_tools")
    file = CLINICAL / "tools.py"
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)  # noqa: S102 - a file of this repository
    registry = Registry.from_files(CLINICAL / "manifest.yaml")
    registry.bind("retrieve_evidence", module.retrieve_evidence)
    registry.bind("link_sources", module.link_sources)
    return registry


@pytest.fixture(scope="module")
def pep(registry: Registry) -> Pep:
    return Pep.from_registry(registry)


def retrieved(pep: Pep, arguments: dict[str, Any], **session: Any) -> Any:
    """Call the retrieval tool, and return its result and the state after the call."""
    evaluation = pep.call({"tool": "retrieve_evidence", "arguments": arguments}, {**SESSION, **session})
    assert evaluation.outcome.failure is None
    assert evaluation.state is not None
    return evaluation.result, evaluation.state


GUIDELINE = {"id": "ev-1", "text": "Metformin is the first choice in type 2 diabetes.", "subquestion": "whole"}
ON_THE_WEB = {
    "id": "ev-2", "text": "Metformin is stopped before contrast media when the eGFR is below 30.", "subquestion": "q1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("session", "evidence", "query"),
    [
        pytest.param({}, [GUIDELINE], "metformin", id="the default"),
        pytest.param(
            {"config": {"search_mode": " WEB "}}, [{**ON_THE_WEB, "subquestion": "whole"}], "metformin", id="normalised"
        ),
        pytest.param(
            {"config": {"search_mode": " "}, "state": {"search_mode": "web"}}, [{**ON_THE_WEB, "subquestion": "whole"}],
            "metformin", id="what becomes null is not given",
        ),
        pytest.param(
            {"state": {"search_mode": "web", "patient_context": "age 70"}}, [{**ON_THE_WEB, "subquestion": "whole"}],
            "metformin (age 70)", id="from the state",
        ),
    ],
)  # fmt: skip
def test_tool_function_gets_config_and_state(
    pep: Pep, session: dict[str, Any], evidence: list[Any], query: str
) -> None:
    result, _ = retrieved(pep, {"query": "metformin"}, **session)

    assert result == {"evidence": evidence, "last_query": query}


def test_model_cannot_set_config_or_state(pep: Pep) -> None:
    evaluation = pep.call(
        {"tool": "retrieve_evidence", "arguments": {"query": "metformin", "patient_context": "age 70"}}, SESSION
    )

    assert evaluation.outcome.as_json()["rejection"]["code"] == "INVALID_PAYLOAD"


def test_tool_results_are_merged_into_state_and_prompt(pep: Pep, registry: Registry) -> None:
    """New evidence is appended and stays in the next turn. The last query is replaced, and the next turn clears it."""
    _, first = retrieved(pep, {"query": "metformin"})
    _, second = retrieved(pep, {"query": "contrast", "subquestion_ids": ["q1"]}, state=first)
    guideline = {**GUIDELINE, "subquestion": "q1"}

    assert first == {"evidence": [GUIDELINE], "last_query": "metformin"}
    assert second == {"evidence": [GUIDELINE, guideline, ON_THE_WEB], "last_query": "contrast"}
    assert registry.compiled.state.render_prompt("Last: {{LAST_QUERY}}", second) == "Last: contrast"
    assert registry.compiled.state.at_turn_start(second) == {"evidence": second["evidence"]}


def test_plan_evaluation_names_the_violated_invariants(pep: Pep) -> None:
    """The plan violates each of the four invariants in the document."""
    bundled = {"query": "metformin", "subquestion_ids": ["q1", "q2"]}
    steps = [
        {"tool": "retrieve_evidence", "arguments": bundled, "step_name": "all"},
        {"tool": "retrieve_evidence", "arguments": {**bundled, "query": "contrast"}},
        {"tool": "retrieve_evidence", "arguments": {"query": "metformin", "web_search": True}},
        {"tool": "retrieve_evidence", "arguments": {**bundled, "subquestion_id": "q1"}},
    ]

    planned = pep.plan(steps, SESSION)

    assert [(str(step.status), [trip.invariant for trip in step.trips]) for step in planned.checked.steps] == [
        ("transformed", ["BUNDLED_REQUIRES_WEB_SEARCH"]),
        ("transformed", ["BUNDLED_REQUIRES_WEB_SEARCH", "SINGLE_BUNDLED_STEP_PER_PLAN"]),
        ("transformed", ["NO_DUPLICATE_IDENTICAL_CALLS"]),
        ("rejected", ["MUTUAL_EXCLUSIVE_SUBQUESTION_FIELDS"]),
    ]
    assert planned.plan == [{**steps[0], "arguments": {**bundled, "web_search": True}}]
    assert not planned.acceptable
