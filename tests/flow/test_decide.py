"""Decisions: a tool runs only after ALLOW and only with the decided arguments, and every call is recorded."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from pdp import Evaluation, Pep, Verdict
from pdp.audit.chain import recordable
from pdp.engine.protocol import DECISION, Engine
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.errors import AuditError, EngineTimeoutError
from pdp.json import canonical
from tests.support import PATIENCE, desk, payments
from tests.support.desk import Call, FailingAudit, both_ways, events
from tests.support.payments import REMEDY, Hub, session, wire


@pytest.fixture
def pep(payments_engine: EmbeddedEngine, hub: Hub) -> Pep:
    return Pep(payments.effective(), payments_engine, tools={"initiate_wire": hub.initiate_wire})


def test_worked_example_of_the_registry_document_has_all_trace_fields(pep: Pep) -> None:
    evaluation = pep.decide(wire(), session())

    assert evaluation.verdict is Verdict.STEP_UP
    assert evaluation.codes == ("limits.exceeded",)
    assert evaluation.request is not None
    assert evaluation.request == {
        "subject": {
            "type": "user",
            "id": "officer-123",
            "properties": {
                "scopes": ["payments.lookup", "payments.validate", "payments.wire.initiate"],
                "limits": {"wire.auto_approved": 25000},
            },
        },
        "action": {
            "name": "initiate_wire",
            "properties": {
                "tool": "initiate_wire",
                "manifest_version": "2026.07.1",
                "manifest_digest": pep.manifest.digest,
            },
        },
        "resource": {"type": "wire_payment", "id": "bene-acme-441", "properties": {}},
        "context": {
            "amount": 47500,
            "sanctions_status": "clear",
            "looked_up_beneficiary": "bene-acme-441",
            "idempotency_key": "idm-4a2b",
            "arguments": payments.ARGUMENTS,
            "purpose": None,
            "time": "2026-07-01T10:00:00Z",
            "run_id": "run-1",
            "request_id": "req-1",
            "call_digest": evaluation.request["context"]["call_digest"],
            "approval": None,
        },
    }


def test_evaluation_as_json_has_all_fields(pep: Pep) -> None:
    evaluation = pep.decide(wire(), session(), tool_call_id="call-7", step_name="pay")

    assert evaluation.as_json() == {
        "outcome": {
            "status": "rejected",
            "rejection": {
                "code": "POLICY_VIOLATION",
                "reason": "STEP_UP: limits.exceeded: The amount is above what the subject may do without approval. "
                + REMEDY,
            },
        },
        "verdict": "STEP_UP",
        "reasons": [
            {
                "code": "limits.exceeded",
                "message": "The amount is above what the subject may do without approval.",
                "details": {
                    "limit": "wire.auto_approved",
                    "argument": "amount",
                    "value": 47500,
                    "held": 25000,
                    "approval": {
                        "approvers": ["payments.approver"],
                        "expires": "PT1H",
                        "expires_seconds": 3600,
                        "quorum": 1,
                        "unless_within_limits": True,
                    },
                },
                "remedy": REMEDY,
            }
        ],
        "obligations": [],
        "trace": {
            "tool_name": "initiate_wire",
            "manifest_version": "2026.07.1",
            "in_manifest": True,
            "schema_valid": True,
            "risk_tier": "high",
            "pdp_action": "initiate_wire",
            "idempotency_key": "idm-4a2b",
            "idempotency_missing": False,
            "request_id": "req-1",
            "tool_call_id": "call-7",
            "step_name": "pay",
        },
        "decision_id": evaluation.decision.decision_id if evaluation.decision else "none",
        "bundle_revision": evaluation.decision.bundle_revision if evaluation.decision else "none",
    }


def test_allowed_call_runs_once_and_is_recorded_before_and_after(pep: Pep, hub: Hub) -> None:
    evaluation = pep.call(wire(amount=20000), session())

    assert (evaluation.allowed, evaluation.executed, evaluation.result) == (True, True, {"wire_id": "wire-1"})
    assert hub.wires == [{**payments.ARGUMENTS, "amount": 20000}]
    before, after = events(pep)
    assert (before["type"], before["status"], before["verdict"], before["outcome"]) == (
        "tool.initiate_wire.dispatch", "accepted", "ALLOW", None,
    )  # fmt: skip
    assert (after["type"], after["status"], after["outcome"]) == ("tool.initiate_wire.result", "accepted", "succeeded")
    assert before["arguments_digest"] == after["arguments_digest"]
    assert evaluation.decision is not None
    assert before["decision_id"] == after["decision_id"] == evaluation.decision.decision_id
    assert pep.audit.digest(b'{"wire_id":"wire-1"}') == after["result_digest"]


def test_decision_event_has_subject_tool_and_reasons(pep: Pep) -> None:
    pep.decide(wire(), session(agent="agent:payments"), tool_call_id="call-7")

    [event] = events(pep)
    expected = {
        "seq": 0, "type": "tool.initiate_wire.dispatch", "request_id": "req-1", "tool_call_id": "call-7",
        "run_id": "run-1", "subject": "officer-123", "agent": "agent:payments", "tool_name": "initiate_wire",
        "manifest_version": "2026.07.1", "manifest_digest": pep.manifest.digest, "status": "rejected",
        "rejection": "POLICY_VIOLATION", "verdict": "STEP_UP", "codes": ["limits.exceeded"],
        "idempotency_key": "idm-4a2b", "approval_id": None, "outcome": "not_executed", "result_digest": None,
        "error_code": None, "duration_ms": None,
        "arguments_digest": pep.audit.digest(canonical(payments.ARGUMENTS)),
    }  # fmt: skip
    assert {name: event[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("proposal", "changes", "code", "trace"),
    [
        pytest.param(
            {"tool": "shell_exec", "arguments": {"command": "id"}}, {}, "INVALID_TOOL_NAME",
            {"tool_name": "shell_exec", "in_manifest": False, "schema_valid": None}, id="not in the manifest",
        ),
        pytest.param(
            wire(amount="47500"), {}, "INVALID_PAYLOAD",
            {"in_manifest": True, "schema_valid": False, "idempotency_missing": None}, id="a string amount",
        ),
        pytest.param(
            wire(), {"idempotency_key": None}, "INVALID_PAYLOAD",
            {"schema_valid": True, "idempotency_missing": True, "idempotency_key": None}, id="no idempotency key",
        ),
        pytest.param([], {}, "INVALID_PAYLOAD", {"tool_name": None, "in_manifest": None}, id="a list"),
        pytest.param(wire(beneficiary_id=""), {}, "INVALID_PAYLOAD", {"schema_valid": True}, id="no resource id"),
    ],
)  # fmt: skip
def test_call_that_fails_a_check_never_reaches_the_policy(
    pep: Pep, hub: Hub, proposal: Any, changes: dict[str, Any], code: str, trace: dict[str, Any]
) -> None:
    evaluation = pep.call(proposal, session(**changes))

    assert (evaluation.verdict, evaluation.decision, evaluation.request) == (None, None, None)
    assert evaluation.outcome.rejection is not None
    assert (evaluation.outcome.rejection.code, evaluation.allowed) == (code, False)
    assert {name: getattr(evaluation.trace, name) for name in trace} == trace
    assert hub.wires == []
    [event] = events(pep)
    assert (event["status"], event["rejection"], event["verdict"]) == ("rejected", code, None)


def test_event_type_never_contains_an_unknown_tool_name_that_the_model_wrote(pep: Pep) -> None:
    pep.decide({"tool": "x" * 1000, "arguments": {}}, session())

    [event] = events(pep)
    assert (event["type"], event["tool_name"]) == ("tool.unknown.dispatch", "x" * 128)


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        pytest.param({}, "decision.request_invalid", id="no subject"),
        pytest.param({"sub": "x", "limits": {"wire.auto_approved": "1"}}, "decision.request_invalid", id="text limit"),
        pytest.param(
            {"sub": "x", "act": {"sub": "a", "scopes": "x"}}, "decision.request_invalid", id="actor of the wrong type"
        ),
        pytest.param({"sub": "x"}, "scopes.missing", id="no scopes"),
    ],
)
def test_call_with_insufficient_claims_is_denied(pep: Pep, claims: dict[str, Any], code: str) -> None:
    evaluation = pep.decide(wire(amount=1), session(claims=claims))

    assert (evaluation.verdict, evaluation.codes) == (Verdict.DENY, (code,))


@pytest.mark.parametrize("given", [None, {}, {"claims": {"sub": "x"}, "approval": {"granted": True}}, 7])
def test_call_with_an_invalid_session_is_denied(pep: Pep, given: Any) -> None:
    evaluation = pep.call(wire(), given)

    assert (evaluation.verdict, evaluation.codes) == (Verdict.DENY, ("decision.request_invalid",))
    assert [event["codes"] for event in events(pep)] == [["decision.request_invalid"]]


class Broken(Engine):
    """An engine that raises the given exception or returns the given bytes."""

    name = "broken"

    def __init__(self, failure: BaseException | bytes) -> None:
        self.failure = failure

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        if isinstance(self.failure, bytes):
            return self.failure
        raise self.failure


def answer(**changes: Any) -> bytes:
    granted = {"code": "effects.gate_satisfied", "message": "", "details": {}}
    bundle = {"revision": "sha256:1", "release": 1}
    return orjson.dumps({"verdict": "ALLOW", "reasons": [granted], "obligations": [], "bundle": bundle, **changes})


@both_ways
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        pytest.param(EngineTimeoutError("late"), "engine.timeout", id="time-out"),
        pytest.param(RuntimeError("bug"), "pep.internal_error", id="any exception"),
        pytest.param(b"{}", "engine.answer_invalid", id="empty answer"),
        pytest.param(
            answer(obligations=[{"id": "redact", "on": "ALLOW", "parameters": {}}]), "obligations.unfulfillable",
            id="unknown obligation",
        ),
    ],
)  # fmt: skip
def test_call_is_denied_if_the_engine_fails(hub: Hub, failure: Exception | bytes, code: str, call: Call) -> None:
    pep = Pep(payments.effective(), Broken(failure), tools={"initiate_wire": hub.initiate_wire})
    called = call(pep, wire(), session())

    assert (called.verdict, called.codes, called.executed, hub.wires) == (Verdict.DENY, (code,), False, [])
    assert [event["codes"] for event in events(pep)] == [[code]]


def test_engine_answer_with_an_older_or_missing_release_is_denied_as_stale() -> None:
    broken = Broken(b"")
    pep = Pep(payments.effective(), broken)
    codes = []
    for release in (None, 2, 1, None, 3):
        broken.failure = answer(bundle=release and {"revision": f"sha256:{release}", "release": release})
        codes.append(pep.decide(wire(), session()).codes)

    allowed, stale = ("effects.gate_satisfied",), ("bundle.stale",)
    assert codes == [allowed, allowed, stale, stale, allowed]


def test_engine_answer_with_a_release_older_than_that_of_a_denial_is_stale() -> None:
    """The newest release is remembered even if the engine fails. Otherwise an older release could undo the denial."""
    later = {"revision": "sha256:2", "release": 2}
    reason = {"code": "scopes.missing", "message": "", "details": {}}
    broken = Broken(answer(verdict="DENY", reasons=[reason], bundle=later))
    pep = Pep(payments.effective(), broken)
    codes = [pep.decide(wire(), session()).codes]
    for failure in (EngineTimeoutError("late"), answer(bundle={"revision": "sha256:1", "release": 1})):
        broken.failure = failure
        codes.append(pep.decide(wire(), session()).codes)

    assert codes == [("scopes.missing",), ("engine.timeout",), ("bundle.stale",)]


def test_changing_an_evaluation_does_not_affect_later_decisions(pep: Pep) -> None:
    who = session()
    first = pep.decide(wire(), who).request
    assert first is not None
    first["subject"]["properties"]["limits"]["wire.auto_approved"] = 1_000_000
    first["action"]["properties"]["manifest_digest"] = "x"

    assert pep.decide(wire(), who).codes == ("limits.exceeded",)


@pytest.mark.parametrize("odd", ["\ud800", "x" * 2_000_000, "a\nb"])
def test_call_with_unusual_text_from_the_model_is_recorded(pep: Pep, odd: str) -> None:
    evaluation = pep.decide({"tool": "shell_exec", "arguments": {}}, session(), tool_call_id=odd, step_name=odd)

    assert evaluation.verdict is None
    [event] = events(pep)
    assert event["tool_call_id"] == recordable(odd)


def test_acting_agent_of_the_claims_is_recorded(pep: Pep) -> None:
    pep.decide(wire(), session(claims={"sub": "x", "act": {"sub": "agent:payments"}}))

    assert [event["agent"] for event in events(pep)] == ["agent:payments"]


@pytest.mark.parametrize("failure", [AuditError("disk full"), RuntimeError("bug")])
def test_call_that_cannot_be_recorded_does_not_run(pep: Pep, hub: Hub, failure: Exception) -> None:
    called = pep.with_changes(audit=FailingAudit(failure, takes=0)).call(wire(amount=20000), session())

    assert (called.verdict, called.codes, hub.wires) == (Verdict.DENY, ("audit.write_failed",), [])


def test_result_that_cannot_be_recorded_is_withheld_with_an_unknown_outcome(pep: Pep, hub: Hub) -> None:
    called = pep.with_changes(audit=FailingAudit(AuditError("disk full"), takes=1)).call(wire(amount=20000), session())

    failure = called.outcome.failure
    assert failure is not None
    assert (called.executed, called.result, failure.details) == (True, None, {"effect": "unknown"})
    assert len(hub.wires) == 1


def test_unavailable_tool_stays_unavailable_if_its_result_cannot_be_recorded(pep: Pep) -> None:
    pep = pep.with_changes(tools={}, audit=FailingAudit(AuditError("disk full"), takes=1))
    called = pep.call(wire(amount=20000), session())

    failure = called.outcome.failure
    assert failure is not None
    assert (called.executed, failure.code, failure.details) == (False, "TOOL_UNAVAILABLE", {})


def test_tool_without_function_is_unavailable(pep: Pep) -> None:
    pep = pep.with_changes(tools={})
    called = pep.call(wire(amount=20000), session())

    failure = called.outcome.failure
    assert failure is not None
    assert (called.allowed, called.executed, failure.code) == (True, False, "TOOL_UNAVAILABLE")
    assert [event["error_code"] for event in events(pep)] == [None, "TOOL_UNAVAILABLE"]


def test_decided_arguments_run_even_if_caller_changes_the_proposal(hub: Hub) -> None:
    proposal = wire(amount=20000)

    class Meddling(Broken):
        def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
            proposal["arguments"]["amount"] = 1_000_000
            return super().evaluate(body, document)

    pep = Pep(payments.effective(), Meddling(answer()), tools={"initiate_wire": hub.initiate_wire})
    pep.call(proposal, session())

    assert hub.wires == [{**payments.ARGUMENTS, "amount": 20000}]


def test_tool_can_only_change_its_own_copy_of_arguments(pep: Pep) -> None:
    def initiate_wire(**arguments: Any) -> None:
        arguments.clear()

    pep = pep.with_changes(tools={"initiate_wire": initiate_wire})
    called = pep.call(wire(amount=20000), session())

    assert called.outcome.proposal is not None
    assert called.outcome.proposal.as_json() == wire(amount=20000)


async def test_asynchronous_call_gets_the_same_decision_as_a_synchronous_call(pep: Pep, hub: Hub) -> None:
    decided = await pep.adecide(wire(), session())
    allowed, stepped = await asyncio.gather(pep.acall(wire(amount=20000), session()), pep.acall(wire(), session()))

    assert decided.codes == stepped.codes == ("limits.exceeded",)
    assert (allowed.result, len(hub.wires)) == ({"wire_id": "wire-1"}, 1)
    assert len(events(pep)) == 4


def test_threads_can_use_one_enforcement_point_concurrently(pep: Pep, hub: Hub) -> None:
    def work(amount: int) -> list[Evaluation]:
        return [pep.call(wire(amount=amount), session(idempotency_key=f"{amount}/{number}")) for number in range(50)]

    with ThreadPoolExecutor(4) as threads:
        evaluations = [each for many in threads.map(work, (20000, 47500, 25000, 25001)) for each in many]

    assert sorted({(each.verdict, each.executed) for each in evaluations}) == [
        (Verdict.ALLOW, True), (Verdict.STEP_UP, False),
    ]  # fmt: skip
    assert sorted({each["amount"] for each in hub.wires}) == [20000, 25000]
    assert (len(hub.wires), len(events(pep))) == (100, 300)


async def test_cancelled_decision_is_recorded(hub: Hub) -> None:
    asked = asyncio.Event()

    class Waiting(Broken):
        async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
            asked.set()
            await asyncio.sleep(60)
            return body

    pep = Pep(payments.effective(), Waiting(b""), tools={"initiate_wire": hub.initiate_wire})
    task = asyncio.create_task(pep.acall(wire(amount=20000), session()))
    await asyncio.wait_for(asked.wait(), PATIENCE)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event["codes"] for event in events(pep)] == [["pep.internal_error"]]
    assert hub.wires == []


def test_interrupted_decision_is_recorded(hub: Hub) -> None:
    pep = Pep(payments.effective(), Broken(KeyboardInterrupt()), tools={"initiate_wire": hub.initiate_wire})
    with pytest.raises(KeyboardInterrupt):
        pep.call(wire(amount=20000), session())

    assert [event["codes"] for event in events(pep)] == [["pep.internal_error"]]


def test_pep_from_files_decides_with_the_released_baseline_policies() -> None:
    example = payments.EXAMPLE
    pep = Pep.from_files(str(example / "manifest.json"), governance=str(example / "governance.yaml"))

    assert pep.decide(wire(amount=20000), session()).allowed
    assert pep.decide(wire(), session()).codes == ("limits.exceeded",)
    pep.engine.close()
    assert pep.decide(wire(), session()).codes == ("engine.unavailable",)


@pytest.mark.parametrize(
    ("proposal", "changes", "trace", "reason"),
    [
        pytest.param(
            [], {}, (None, None, None, None), "a proposal is an object with tool and arguments, not a list",
            id="unreadable",
        ),
        pytest.param(
            desk.propose("no_tool"), {}, (False, None, None, None), "'no_tool' is not a tool of manifest 2026.1.0",
            id="not in the manifest",
        ),
        pytest.param(
            desk.propose("book_entry", amount="5 Euro"), {}, (True, False, None, "low"),
            'arguments.amount: "***" is not of type "number"', id="a value of another type",
        ),
        pytest.param(
            desk.propose("book_entry", account=4321), {}, (True, False, None, "low"),
            'arguments.account: *** is not of type "string"', id="a number",
        ),
        pytest.param(
            desk.propose("book_entry", ssn_4321=True), {}, (True, False, None, "low"),
            "arguments: Unevaluated properties are not allowed ('***' was unexpected)", id="data as an argument name",
        ),
        pytest.param(
            desk.propose("book_entry", amount={"born": [1970]}), {}, (True, False, None, "low"),
            'arguments.amount: {"***":[***]} is not of type "number"', id="nested value",
        ),
        pytest.param(
            desk.propose("book_entry", account="x " * 20_000), {}, (True, False, None, "low"), "***", id="many values",
        ),
        pytest.param(
            desk.propose("book_entry"), {"idempotency_key": None}, (True, True, True, "low"),
            "book_entry needs an idempotency key, but the session has none", id="no key",
        ),
        pytest.param(desk.propose("pay_small", amount=200), {}, (True, True, False, "medium"), None, id="denied"),
        pytest.param(desk.propose("keep_draft"), {}, (True, True, False, "low"), None, id="accepted"),
    ],
)  # fmt: skip
def test_event_names_the_failed_check_without_quoting_the_call(
    in_memory: Pep, proposal: Any, changes: dict[str, Any], trace: tuple[Any, ...], reason: str | None
) -> None:
    evaluation = in_memory.decide(proposal, desk.session(**changes), step_name="s" * 300)

    [event] = events(in_memory)
    same = ("in_manifest", "schema_valid", "idempotency_missing", "risk_tier", "pdp_action", "step_name")
    assert [event[name] for name in same] == [getattr(evaluation.trace, name) for name in same]
    assert tuple(event[name] for name in same[:4]) == trace
    assert event["reason"] == reason
    rejection = evaluation.outcome.rejection
    assert event["rejection"] == (rejection and rejection.code)


def test_denial_by_the_enforcement_point_is_recorded_with_its_reason(in_memory: Pep) -> None:
    in_memory.call(desk.propose("book_entry"), desk.session())
    evaluation = in_memory.call(desk.propose("book_entry", amount=6), desk.session())

    event = events(in_memory)[-1]
    assert evaluation.codes == ("idempotency.conflict",)
    assert event["reason"] == (
        "DENY: idempotency.conflict: the idempotency key was used for a call with other arguments"
    )


def test_recorded_request_gets_the_same_decision_again(in_memory: Pep) -> None:
    """The tool boundary document requires decisions that can be audited and reproduced."""
    evaluation = in_memory.call(desk.propose("pay_small", amount=200), desk.session())
    line = orjson.dumps({"input": evaluation.request})

    again = in_memory.engine.decide_body(canonical(orjson.loads(line)["input"]))

    [event] = [event for event in events(in_memory) if event["type"] == "tool.pay_small.dispatch"]
    arguments = orjson.loads(line)["input"]["context"]["arguments"]
    assert event["arguments_digest"] == in_memory.audit.digest(canonical(arguments))
    assert (again.verdict, list(again.codes), again.bundle_revision) == (
        event["verdict"], event["codes"], event["bundle_revision"],
    )  # fmt: skip
