"""The memory example of the tool boundary document: the fixed rejection codes, and repeated decisions."""

from collections.abc import Iterator
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest

from pdp import Engine, Evaluation, MemoryAudit, Pep
from pdp.contract.invariants import InvariantContext, Invariants
from pdp.errors import FileFaultsError
from pdp.json import canonical
from pdp.manifest.load import load_effective, load_manifest
from pdp.manifest.model import Invariant
from pdp.proposal import Rejection, RejectionCode
from pdp.workbench.scenarios.files.suite import Suite, load_suite
from pdp.workbench.scenarios.running.engines import open_suite_engine
from tests.support import ROOT

MEMORY = ROOT / "examples/memory"
pytestmark = pytest.mark.opa


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(MEMORY / "scenarios.yaml")


@pytest.fixture(scope="module", params=["embedded", "sidecar"])
def engine(request: pytest.FixtureRequest, suite: Suite, opa: object) -> Iterator[Engine]:
    with open_suite_engine(suite, request.param) as opened:
        yield opened


@pytest.fixture
def memory() -> Any:
    module = ModuleType("memory_tools")
    file = MEMORY / "tools.py"
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)  # noqa: S102 - a file of this repository
    return module.Memory()


def proposed(suite: Suite) -> list[tuple[Any, Any]]:
    """Return each proposal of all scenarios with its session. The run id of the session names the scenario."""
    return [
        (proposal, suite.sessions[at][number])
        for at, scenario in enumerate(suite.scenarios)
        for number, step in enumerate(scenario.steps)
        for proposal in (step.plan or [step.propose])
    ]


def called(suite: Suite, engine: Engine, memory: Any) -> list[Evaluation]:
    """Call the proposals of all scenarios on the same memory."""
    pep = Pep(suite.manifest, engine, tools=memory.tools())
    return [pep.call(proposal, session) for proposal, session in proposed(suite)]


def repeatable(evaluation: Evaluation) -> bytes:
    """Return the evaluation as JSON without the decision id, which differs between repeated decisions."""
    return canonical({**evaluation.as_json(), "decision_id": None})


def test_repeating_a_request_gives_the_same_decision(suite: Suite, engine: Engine, memory: Any) -> None:
    evaluations = called(suite, engine, memory)
    asked = [each for each in evaluations if each.request is not None]
    differing = []
    for evaluation in asked:
        again = engine.decide_body(canonical(evaluation.request))
        assert evaluation.decision is not None
        before, after = asdict(evaluation.decision), asdict(again)
        assert before.pop("decision_id") != after.pop("decision_id")
        if canonical(before) != canonical(after):
            differing.append((before, after))

    assert differing == []
    assert {evaluation.verdict for evaluation in asked} == {"ALLOW", "DENY"}
    assert len(asked) > 20


def test_repeated_proposals_with_equal_sessions_have_the_same_outcomes(suite: Suite, engine: Engine) -> None:
    def stand_in(**_: Any) -> None:
        return None

    first, second = (
        [
            repeatable(Pep(suite.manifest, engine, tools=dict.fromkeys(suite.manifest.tools, stand_in)).call(*pair))
            for pair in proposed(suite)
        ]
        for _ in range(2)
    )

    assert first == second
    assert {status for line in first for status in (b"accepted", b"rejected", b"transformed") if status in line} == {
        b"accepted", b"rejected", b"transformed",
    }  # fmt: skip


def test_no_call_of_the_memory_example_writes_to_the_canonical_memory(
    suite: Suite, engine: Engine, memory: Any
) -> None:
    evaluations = called(suite, engine, memory)

    assert memory.canonical == ()
    results = [each.result for each in evaluations if each.executed]
    # The key is derived from the arguments, so a second proposal with the same arguments is not filed as a new
    # proposal.
    assert [each for each in memory.proposals if each not in results] == []
    assert {each["kind"] for each in memory.proposals} == {
        "observation", "entity", "proposition", "support", "contradiction", "test", "test result", "consolidation",
        "archival",
    }  # fmt: skip
    assert [each for each in memory.proposals if not each["provenance"]] == []


def test_audit_log_has_every_source_of_a_filed_proposition(suite: Suite, engine: Engine, memory: Any) -> None:
    audit = MemoryAudit()
    pep = Pep(suite.manifest, engine, tools=memory.tools(), audit=audit)
    filed = [
        (audit.events[-1], evaluation.outcome.proposal.arguments["source_ids"])
        for proposal, session in proposed(suite)
        if (evaluation := pep.call(proposal, session)).executed and evaluation.outcome.proposal is not None
    ]

    assert {len(sources) for _, sources in filed} > {1}
    assert [event["sources"] for event, _ in filed] == [
        [audit.digest(canonical(source)) for source in sources] for _, sources in filed
    ]
    assert {event["type"].rpartition(".")[2] for event in audit.events if event["sources"]} == {"dispatch", "result"}


def test_scenarios_produce_every_fixed_rejection_code(suite: Suite, engine: Engine, memory: Any) -> None:
    rejections = [each.outcome.rejection for each in called(suite, engine, memory)]

    assert {rejection.code for rejection in rejections if rejection is not None} == set(RejectionCode)


def test_canonical_write_is_rejected_with_its_reason(suite: Suite, engine: Engine) -> None:
    arguments = {
        "entity_id": "lamp", "statement": "It is broken", "confidence": 0.5, "state": "consolidated",
        "source_ids": ["obs-1"],
    }  # fmt: skip

    evaluation = Pep(suite.manifest, engine).call(
        {"tool": "propose_proposition", "arguments": arguments}, {"claims": {}}
    )

    assert evaluation.outcome.as_json() == {
        "status": "rejected",
        "rejection": {
            "code": "DIRECT_CANONICAL_WRITE_FORBIDDEN",
            "reason": "NO_CANONICAL_WRITES: A proposition is proposed as a candidate; every other state is given by "
            "those who keep the memory",
        },
    }
    assert (evaluation.verdict, [str(trip.resolution) for trip in evaluation.trips]) == (None, ["rejected"])


def test_governance_alone_forbids_writes_to_the_canonical_memory(engine: Engine, memory: Any) -> None:
    """Governance names the tool that writes the canonical memory, so no call of this tool runs, even in a plan."""
    governance = b'{"actions": {"request_consolidation": {"writes": "canonical"}}}'
    effective = load_effective(MEMORY / "manifest.yaml", "governance.json", governance_text=governance)
    payload = {"proposition_id": "p-2", "note": "Settled", "source_ids": ["obs-1"]}
    pep = Pep(effective, engine, tools=memory.tools())

    for asked in (payload, {}):
        evaluation = pep.call({"tool_name": "request_consolidation", "payload": asked}, {"claims": {}})
        assert evaluation.outcome.as_json() == {
            "status": "rejected",
            "rejection": {
                "code": "DIRECT_CANONICAL_WRITE_FORBIDDEN",
                "reason": "request_consolidation writes canonical memory, so no model may call it: propose the change "
                "instead",
            },
        }
        assert (evaluation.verdict, evaluation.executed, evaluation.trips) == (None, False, ())
    plan = pep.plan([{"tool": "request_consolidation", "arguments": payload}], {"claims": {}})
    assert (plan.acceptable, plan.plan) == (False, [])
    assert memory.proposals == []


def rule(**fields: Any) -> Invariants:
    """Return invariants with a single rule. The rule rejects calls with this code."""
    stated = {"id": "R", "rule": "the rule", "check": "call.a == 1", "rejection": "MISSING_PROVENANCE", **fields}
    return Invariants([Invariant.model_validate(stated)])


@pytest.mark.parametrize(
    ("rules", "arguments", "expected"),
    [
        pytest.param(rule(), {"a": 1}, None, id="kept"),
        pytest.param(rule(), {"a": 2}, ("R: the rule", "MISSING_PROVENANCE"), id="violated"),
        pytest.param(rule(rejection=None), {"a": 2}, ("R: the rule", "INVALID_PAYLOAD"), id="no code stated"),
        pytest.param(rule(correct={"set": {"a": 1}}), {"a": 2}, None, id="corrected"),
        pytest.param(
            rule(correct={"set": {"b": 1}}),
            {"a": 2, "b": 1},
            ("R: the rule (the invariant's correction changes nothing)", "MISSING_PROVENANCE"),
            id="not corrected",
        ),
    ],
)
def test_invariant_rejects_a_call_with_its_code(
    rules: Invariants, arguments: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    result = rules.applied(arguments, InvariantContext({}, {}), lambda _: None)

    assert result.rejection == (None if expected is None else Rejection(RejectionCode(expected[1]), expected[0]))


def test_invariant_that_cannot_be_evaluated_rejects_with_the_general_code() -> None:
    rejection = rule(check="call.a < 1").applied({"a": "one"}, InvariantContext({}, {}), lambda _: None).rejection

    assert rejection is not None
    assert (rejection.reason.partition(":")[0], rejection.code) == ("R", "INVALID_PAYLOAD")


def test_unknown_code_of_an_invariant_is_a_manifest_fault() -> None:
    text = (MEMORY / "manifest.yaml").read_bytes().replace(b"DIRECT_CANONICAL_WRITE_FORBIDDEN", b"CANONICAL_WRITE")

    with pytest.raises(FileFaultsError) as caught:
        load_manifest("manifest.yaml", manifest_text=text)

    message = (
        "`invariants[0].rejection` must be one of INVALID_TOOL_NAME, INVALID_PAYLOAD, MISSING_PROVENANCE, "
        "POLICY_VIOLATION, DIRECT_CANONICAL_WRITE_FORBIDDEN, not `CANONICAL_WRITE`"
    )
    assert [(fault.message, fault.hint) for fault in caught.value.faults] == [
        (message, "did you mean `DIRECT_CANONICAL_WRITE_FORBIDDEN`?")
    ]
