"""Obligations: a call runs only if all its obligations can be fulfilled. If a handler fails, the result is withheld."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pdp import Approvals, Evaluation, MemoryAudit, ObligationHandler, Pep, Verdict
from pdp.audit.chain import AuditEvent
from pdp.decision import GRANT
from pdp.engine.protocol import DECISION
from pdp.errors import AuditError, UsageError
from pdp.json import canonical
from pdp.obligations.handlers import Delivery, ObligationError
from tests.support import PATIENCE, payments
from tests.support.desk import FailingAudit
from tests.support.payments import session, wire
from tests.support.scripted import Scripted, answer, duty

EFFECTIVE = payments.effective()
SNAPSHOT = duty("pin_retrieval_snapshot")


class RecordingHandler(ObligationHandler):
    """A handler that records its calls and adds the handler's parameter `name` to the result."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def check(self, parameters: Mapping[str, Any]) -> None:
        if set(parameters) - {"name"}:
            raise ObligationError("name is its only parameter")

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        self.seen.append((dict(parameters), request["action"]["name"]))

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        return replace(delivery, result={**delivery.result, "by": [*delivery.result.get("by", []), parameters["name"]]})


def pep_of(
    respond: Callable[[dict[str, Any]], dict[str, Any]], result: Any = None, own: Any = None, **options: Any
) -> tuple[Pep, list[Any]]:
    """Return an enforcement point whose only tool returns `result`, and a list of the calls of the tool."""
    ran: list[Any] = []

    def initiate_wire(**arguments: Any) -> Any:
        ran.append(arguments)
        return result

    tools = {"initiate_wire": initiate_wire}
    return Pep(EFFECTIVE, Scripted(respond), tools=tools, obligations=own, **options), ran


def called(*obligations: dict[str, Any], result: Any = None, own: Any = None) -> Evaluation:
    pep, _ = pep_of(lambda _: answer("ALLOW", *obligations), result, own)
    return pep.call(wire(), session())


UNEXPECTED = "parameters: Additional properties are not allowed ({!r} was unexpected)"
NO_POINTER = 'parameters.fields[0]: "{}" does not match "^(/([^~/]|~[01])*)*$"'
NO_LEVEL = 'parameters.level: {} is not one of "debug", "error" or 2 other candidates'
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("redact", {}, 'parameters: "fields" is a required property'),
    ("redact", {"fields": []}, "parameters.fields: [] has less than 1 item"),
    ("redact", {"fields": "/a"}, 'parameters.fields: "/a" is not of type "array"'),
    ("redact", {"fields": ["/a", 1]}, 'parameters.fields[1]: 1 is not of type "string"'),
    *(("redact", {"fields": [at]}, NO_POINTER.format(at)) for at in ("a", "/a~2")),
    ("redact", {"fields": ["/a"], "field": 1}, UNEXPECTED.format("field")),
    ("mark_result", {}, 'parameters: "markings" is a required property'),
    ("mark_result", {"markings": []}, "parameters.markings: [] has less than 1 item"),
    ("mark_result", {"markings": {"pii": True}}, 'parameters.markings: {"pii":true} is not of type "array"'),
    ("log_level", {}, 'parameters: "level" is a required property'),
    *(("log_level", {"level": json.loads(level)}, NO_LEVEL.format(level)) for level in ('"loud"', '["info"]', "30")),
    ("draft_only", {"state": "draft"}, UNEXPECTED.format("state")),
    ("pin_retrieval_snapshot", {"id": "x"}, UNEXPECTED.format("id")),
    ("transform", {}, "parameters: {} has less than 1 property"),
    ("transform", {"set": []}, 'parameters.set: [] is not of type "object"'),
    ("transform", {"tool": 1}, 'parameters.tool: 1 is not of type "string"'),
    ("transform", {"arguments": {}}, UNEXPECTED.format("arguments")),
]


@pytest.mark.parametrize(
    ("obligation", "message"),
    [
        *(
            (duty(name, **given), f"{name}: the obligation's parameters are not valid: {fault}")
            for name, given, fault in WRONG
        ),
        (duty("own", other=1), "own: name is its only parameter"),
        (duty("unknown"), "no handler for: unknown"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_call_is_denied_if_an_obligation_cannot_be_fulfilled(
    obligation: dict[str, Any], message: str, asynchronous: bool
) -> None:
    own = RecordingHandler()
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("own", name="x"), obligation), {}, {"own": own})
    decided = asyncio.run(pep.acall(wire(), session())) if asynchronous else pep.call(wire(), session())

    assert (decided.verdict, decided.codes) == (Verdict.DENY, ("obligations.unfulfillable",))
    assert decided.reasons[0].message == message
    assert (ran, own.seen) == ([], [])
    assert pep.decide(wire(), session()).codes == ("obligations.unfulfillable",)


REDACTED = "[redacted]"


@pytest.mark.parametrize(
    ("fields", "result", "delivered"),
    [
        pytest.param(["/a"], {"a": 1, "b": 2}, {"a": REDACTED, "b": 2}, id="a field"),
        pytest.param(["/a/b/1"], {"a": {"b": [1, 2]}}, {"a": {"b": [1, REDACTED]}}, id="deep"),
        pytest.param(["/a~1b/m~0n"], {"a/b": {"m~n": 1}}, {"a/b": {"m~n": REDACTED}}, id="escaped"),
        pytest.param(["/~01"], {"~1": 1, "/": 2}, {"~1": REDACTED, "/": 2}, id="escaped once only"),
        pytest.param(["/"], {"": 1}, {"": REDACTED}, id="the empty name"),
        pytest.param([""], {"a": 1}, REDACTED, id="the whole"),
        pytest.param(["/0"], [1, 2], [REDACTED, 2], id="a list"),
        pytest.param(["/a", "/a/b"], {"a": {"b": 1}}, {"a": REDACTED}, id="the outer first"),
        pytest.param(["/a/b", "/a"], {"a": {"b": 1}}, {"a": REDACTED}, id="the inner first"),
        pytest.param(["/x/y", "/a/b", "/l/9"], {"a": None, "l": []}, {"a": None, "l": []}, id="not there"),
        pytest.param(["/a"], None, None, id="no result"),
        pytest.param(["/01"], {"01": 1}, {"01": REDACTED}, id="a name of digits"),
    ],
)
def test_redact_obligation_replaces_the_values_at_the_given_pointers(
    fields: list[str], result: Any, delivered: Any
) -> None:
    before = canonical(result)
    ran = called(duty("redact", fields=fields), result=result)

    assert (ran.allowed, ran.executed, ran.result) == (True, True, delivered)
    assert canonical(result) == before


@pytest.mark.parametrize(
    ("obligation", "result"),
    [
        pytest.param(duty("redact", fields=["/a"]), {"a": object()}, id="redact: no JSON"),
        pytest.param(duty("redact", fields=["/a"]), {"a": 1, "b": float("nan")}, id="redact: not a number"),
        pytest.param(duty("redact", fields=["/a"]), ("a",), id="redact: a tuple"),
        pytest.param(duty("redact", fields=["/a"]), [{"a": 1}], id="redact: a list where an object was expected"),
        pytest.param(duty("redact", fields=["/a/b"]), {"a": "b: 1"}, id="redact: text where an object was expected"),
        pytest.param(duty("redact", fields=["/-"]), [1], id="redact: the place after the last"),
        pytest.param(duty("redact", fields=["/00"]), [1], id="redact: no index"),
        *(
            (duty("draft_only"), result)
            for result in (None, [{"state": "draft"}], {"state": "live"}, {"state": None}, {"state": "Draft"})
        ),
        (SNAPSHOT, None),
        (SNAPSHOT, {"spans": []}),
        *((SNAPSHOT, {"retrievalSnapshotId": snapshot}) for snapshot in ("", 7, ["a"])),
        (SNAPSHOT, {"retrievalSnapshotId": "a", "retrieval_snapshot_id": "b"}),
    ],
)
def test_result_is_withheld_if_an_obligation_cannot_be_fulfilled(obligation: dict[str, Any], result: Any) -> None:
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("mark_result", markings=["pii"]), obligation), result)
    withheld = pep.call(wire(), session())

    assert (withheld.allowed, withheld.executed, withheld.result, withheld.error) == (True, True, None, None)
    assert (withheld.markings, withheld.retrieval_snapshot, len(ran)) == ((), None, 1)
    name = obligation["id"]
    assert withheld.outcome.as_json()["failure"] == {
        "code": "TOOL_EXECUTION_FAILED",
        "message": f"the obligation {name} could not be fulfilled; the result is withheld",
        "details": {"obligation": name, "effect": "done"},
    }
    assert isinstance(pep.audit, MemoryAudit)
    after = pep.audit.events[1]
    assert (after["outcome"], after["error_code"], after["result_digest"]) == ("failed", "TOOL_EXECUTION_FAILED", None)


@pytest.mark.parametrize("result", [{"text": "Dear"}, {"text": "Dear", "state": "draft"}])
def test_draft_only_obligation_sets_the_state_draft_in_a_copy_of_the_result(result: dict[str, Any]) -> None:
    before = dict(result)

    assert called(duty("draft_only"), result=result).result == {"text": "Dear", "state": "draft"}
    assert result == before


def test_markings_and_snapshot_are_delivered_with_the_result() -> None:
    marks = (duty("mark_result", markings=["pii", "corpus.a"]), duty("mark_result", markings=["pii", "b"]))
    for name in ("retrievalSnapshotId", "retrieval_snapshot_id"):
        ran = called(*marks, SNAPSHOT, result={name: "snap-1"})

        assert (ran.markings, ran.retrieval_snapshot) == (("b", "corpus.a", "pii"), "snap-1")
        assert ran.result == {name: "snap-1"}


def test_audit_event_has_the_digest_of_the_redacted_result() -> None:
    pep, _ = pep_of(lambda _: answer("ALLOW", duty("redact", fields=["/iban"])), {"iban": "DE1"})
    pep.call(wire(), session())

    assert isinstance(pep.audit, MemoryAudit)
    assert pep.audit.events[1]["result_digest"] == pep.audit.digest(b'{"iban":"[redacted]"}')


def test_obligation_handlers_do_not_process_the_failure_of_a_tool() -> None:
    def initiate_wire(**_: Any) -> None:
        raise ConnectionError("hub is down")

    respond = Scripted(lambda _: answer("ALLOW", duty("draft_only"), duty("mark_result", markings=["pii"])))
    ran = Pep(EFFECTIVE, respond, tools={"initiate_wire": initiate_wire}).call(wire(), session())

    assert ran.outcome.failure is not None
    assert (ran.outcome.failure.message, ran.markings) == ("ConnectionError", ())


def test_handlers_of_the_application_run_between_draft_only_and_redact() -> None:
    own = {"later": RecordingHandler(), "earlier": RecordingHandler()}
    ran = called(
        duty("redact", fields=["/by/0"]), duty("later", name="l"), duty("earlier", name="e"), duty("draft_only"),
        result={}, own=own,
    )  # fmt: skip

    assert ran.result == {"state": "draft", "by": [REDACTED, "l"]}
    assert [handler.seen for handler in own.values()] == [[({"name": name}, "initiate_wire")] for name in ("l", "e")]


def test_decide_does_not_run_obligation_handlers() -> None:
    own = RecordingHandler()
    pep, _ = pep_of(lambda _: answer("ALLOW", duty("own", name="x")), {}, {"own": own})

    assert pep.decide(wire(), session()).allowed
    assert own.seen == []


class FailingHandler(ObligationHandler):
    def __init__(self, step: str, error: BaseException) -> None:
        self.step, self.error = step, error

    def check(self, parameters: Mapping[str, Any]) -> None:
        self._fail("check")

    def before(self, parameters: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        self._fail("before")

    def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
        self._fail("on_result")
        return delivery

    def _fail(self, step: str) -> None:
        if step == self.step:
            raise self.error


@pytest.mark.parametrize(("step", "decided_first"), [("check", []), ("before", [("ALLOW", [GRANT])])])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ObligationError("the desk is closed"), "own: the desk is closed"),
        (RuntimeError("bug"), "own: the obligation's handler failed; see the log"),
    ],
)
def test_call_is_denied_if_a_handler_raises_before_the_run(
    step: str, decided_first: Any, error: Exception, message: str
) -> None:
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("own")), {}, {"own": FailingHandler(step, error)})
    denied = pep.call(wire(), session())

    assert (denied.codes, [reason.message for reason in denied.reasons]) == (("obligations.unfulfillable",), [message])
    assert ran == []
    assert isinstance(pep.audit, MemoryAudit)
    assert [(event["verdict"], event["codes"]) for event in pep.audit.events] == [
        *decided_first, ("DENY", ["obligations.unfulfillable"]),
    ]  # fmt: skip


def test_idempotency_key_is_free_after_an_obligation_handler_denied_its_call() -> None:
    failing = FailingHandler("before", ObligationError("the desk is closed"))
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("own")), {}, {"own": failing})
    denied = pep.call(wire(), session())
    failing.step = ""

    assert (denied.executed, pep.call(wire(), session()).executed, len(ran)) == (False, True, 1)


def test_obligation_handler_does_not_run_if_the_decision_cannot_be_recorded() -> None:
    own = RecordingHandler()
    log = FailingAudit(AuditError("disk full"), takes=0)
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("own", name="x")), {}, {"own": own}, audit=log)
    denied = pep.call(wire(), session())

    assert (denied.codes, ran, own.seen) == (("audit.write_failed",), [], [])


def test_obligation_handler_runs_once_per_idempotency_key() -> None:
    own = RecordingHandler()
    pep, ran = pep_of(lambda _: answer("ALLOW", duty("own", name="x")), {}, {"own": own})
    calls = [pep.call(proposal, session()) for proposal in (wire(), wire(), wire(amount=1))]

    assert [(call.verdict, call.executed) for call in calls] == [("ALLOW", True), ("ALLOW", False), ("DENY", False)]
    assert (len(ran), own.seen) == (1, [({"name": "x"}, "initiate_wire")])


def test_interrupt_during_on_result_is_recorded_as_unknown() -> None:
    pep, ran = pep_of(
        lambda _: answer("ALLOW", duty("own")), {}, {"own": FailingHandler("on_result", KeyboardInterrupt())}
    )
    with pytest.raises(KeyboardInterrupt):
        pep.call(wire(), session())

    assert (len(ran), recorded(pep)[1:]) == (
        1,
        [("tool.initiate_wire.result", "accepted", None, "unknown", None)],
    )


def test_result_is_withheld_and_not_logged_if_on_result_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = called(
        duty("own"), result={"iban": "DE1"}, own={"own": FailingHandler("on_result", RuntimeError("iban DE1"))}
    )

    assert ran.outcome.failure is not None
    assert (ran.result, ran.outcome.failure.details) == (None, {"obligation": "own", "effect": "done"})
    assert caplog.messages == ["the obligation own failed on a result: RuntimeError"]


def test_result_is_withheld_if_on_result_returns_another_type() -> None:
    assert called(duty("own", anything=1), result={"a": 1}, own={"own": ObligationHandler()}).result == {"a": 1}

    class WrongReturnType(ObligationHandler):
        def on_result(self, parameters: Mapping[str, Any], delivery: Delivery) -> Delivery:
            return delivery.result  # type: ignore[no-any-return]

    assert called(duty("own"), result={"a": 1}, own={"own": WrongReturnType()}).result is None


class Asynchronous(ObligationHandler):
    async def check(self, parameters: Mapping[str, Any]) -> None:  # type: ignore[override]
        raise ObligationError("never awaited")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"redact": RecordingHandler()},
            "obligation redact belongs to the baseline (choose another id for your handler)",
        ),
        (
            {"transform": RecordingHandler()},
            "obligation transform belongs to the baseline (choose another id for your handler)",
        ),
        *(
            (
                {"own": own},
                (
                    "the handler of obligation own is not an ObligationHandler (derive the handler's class from "
                    "ObligationHandler)"
                ),
            )
            for own in (print, RecordingHandler)
        ),
        ({"own": Asynchronous()}, "the handler of obligation own has an async check (make it a plain function)"),
    ],
)
def test_registration_of_an_invalid_handler_raises_an_error(own: Any, message: str) -> None:
    pep, _ = pep_of(lambda _: answer())
    for make in (lambda: pep_of(lambda _: answer(), own=own), lambda: pep.with_changes(obligations=own)):
        with pytest.raises(UsageError) as caught:
            make()
        assert str(caught.value) == message


@pytest.mark.parametrize("verdict", ["ALLOW", "STEP_UP", "DENY"])
def test_log_level_obligation_logs_the_decision_for_every_verdict(
    caplog: pytest.LogCaptureFixture, verdict: str
) -> None:
    levels = (duty("log_level", level="info"), duty("log_level", level="warning"))
    pep, _ = pep_of(lambda _: answer(verdict, *levels))
    with caplog.at_level(logging.DEBUG, logger="pdp.pep"):
        decided = pep.decide(wire(), session())

    assert decided.decision is not None
    code = GRANT if verdict == "ALLOW" else "scripted.said"
    assert caplog.record_tuples == [
        (
            "pdp.pep",
            logging.WARNING,
            f"{verdict} for initiate_wire: {code} (decision {decided.decision.decision_id})",
        )
    ]


@pytest.mark.parametrize("verdict", ["STEP_UP", "DENY"])
def test_obligations_of_a_denied_or_held_call_are_returned_but_not_run(verdict: str) -> None:
    own = RecordingHandler()
    obligations = (duty("unknown"), duty("own", wrong=1), duty("log_level", level=9), duty("transform"))
    pep, ran = pep_of(lambda _: answer(verdict, *obligations), own={"own": own})
    decided = pep.call(wire(), session())

    assert (decided.verdict, decided.codes, ran, own.seen) == (verdict, ("scripted.said",), [], [])
    assert len(decided.obligations) == 4


def transforming_engine(**parameters: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return an engine function that transforms a wire of 47,500 and allows any other call."""

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        if request["context"]["arguments"].get("amount") == 47500:
            return answer("ALLOW", duty("transform", **parameters), duty("own", name="1"))
        return answer("ALLOW", duty("own", name="2"))

    return respond


def recorded(pep: Pep) -> list[tuple[Any, ...]]:
    assert isinstance(pep.audit, MemoryAudit)
    fields = ("type", "status", "verdict", "outcome", "rejection")
    return [tuple(event[name] for name in fields) for event in pep.audit.events]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_transform_obligation_replaces_the_proposed_arguments(asynchronous: bool) -> None:
    own = RecordingHandler()
    pep, ran = pep_of(transforming_engine(set={"amount": 100, "reference": "reduced"}), {}, {"own": own})
    done = asyncio.run(pep.acall(wire(), session())) if asynchronous else pep.call(wire(), session())

    arguments = {**payments.ARGUMENTS, "amount": 100, "reference": "reduced"}
    assert done.outcome.as_json() == {
        "status": "transformed", "proposal": {"tool": "initiate_wire", "arguments": arguments},
    }  # fmt: skip
    assert (ran, done.result) == ([arguments], {"by": ["2"]})
    assert own.seen == [({"name": "2"}, "initiate_wire")]
    assert isinstance(pep.engine, Scripted)
    first, second = (request["context"] for request in pep.engine.asked)
    assert (first["request_id"], first["call_digest"] != second["call_digest"]) == (second["request_id"], True)
    assert recorded(pep) == [
        ("tool.initiate_wire.dispatch", "transformed", "ALLOW", "not_executed", None),
        ("tool.initiate_wire.dispatch", "transformed", "ALLOW", None, None),
        ("tool.initiate_wire.result", "transformed", None, "succeeded", None),
    ]
    assert isinstance(pep.audit, MemoryAudit)
    digests = [event["arguments_digest"] for event in pep.audit.events]
    assert digests == [pep.audit.digest(canonical(each)) for each in (payments.ARGUMENTS, arguments, arguments)]


def test_transform_obligation_can_replace_the_tool() -> None:
    tools = {name: EFFECTIVE.tools["initiate_wire"].model_copy(update={"name": name}) for name in ("first", "second")}
    seen: list[str] = []

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        seen.append(request["action"]["properties"]["tool"])
        return answer() if seen[-1] == "second" else answer("ALLOW", duty("transform", tool="second"))

    functions = {name: lambda name=name, **_: name for name in tools}
    pep = Pep(replace(EFFECTIVE, tools=tools), Scripted(respond), tools=functions)
    done = pep.call({"tool": "first", "arguments": payments.ARGUMENTS}, session())

    assert (seen, done.result, done.trace.tool_name) == (["first", "second"], "second", "second")
    assert done.outcome.as_json() == {
        "status": "transformed", "proposal": {"tool": "second", "arguments": payments.ARGUMENTS},
    }  # fmt: skip
    assert [event[0] for event in recorded(pep)] == [
        "tool.first.dispatch", "tool.second.dispatch", "tool.second.result",
    ]  # fmt: skip


REJECTED = [
    ({"set": {"amount": "100"}}, "INVALID_PAYLOAD"),
    ({"set": {"unknown": 1}}, "INVALID_PAYLOAD"),
    ({"set": {"beneficiary_id": ""}}, "INVALID_PAYLOAD"),
    ({"tool": "shell_exec"}, "INVALID_TOOL_NAME"),
    ({"tool": ""}, "INVALID_TOOL_NAME"),
]


@pytest.mark.parametrize(("parameters", "code"), REJECTED)
def test_invalid_transformed_proposal_is_rejected(parameters: dict[str, Any], code: str) -> None:
    pep, ran = pep_of(transforming_engine(**parameters), {}, {"own": RecordingHandler()})
    done = pep.call(wire(), session())

    assert (done.verdict, done.decision, done.allowed, ran) == (None, None, False, [])
    assert done.outcome.as_json()["rejection"]["code"] == code
    before, after = recorded(pep)
    assert before == ("tool.initiate_wire.dispatch", "transformed", "ALLOW", "not_executed", None)
    assert after[1:] == ("rejected", None, None, code)


@pytest.mark.parametrize(
    ("transforms", "asked"), [([{"amount": 1}], 2), ([{}], 2), ([{"amount": 1}, {"amount": 2}], 1)]
)
def test_call_is_denied_if_policies_transform_the_call_twice(transforms: list[dict[str, Any]], asked: int) -> None:
    pep, ran = pep_of(lambda _: answer("ALLOW", *(duty("transform", set=arguments) for arguments in transforms)))
    done = pep.call(wire(), session())

    assert [reason.message for reason in done.reasons] == ["transform: a proposal can be transformed only once"]
    assert (done.codes, ran) == (("obligations.unfulfillable",), [])
    assert isinstance(pep.engine, Scripted)
    assert len(pep.engine.asked) == asked


def test_transformed_call_gets_a_separate_approval() -> None:
    def respond(request: dict[str, Any]) -> dict[str, Any]:
        context = request["context"]
        if context["arguments"]["amount"] == 47500:
            return answer("ALLOW", duty("transform", set={"amount": 100}))
        return answer("STEP_UP") if context["approval"] is None else answer()

    approvals = Approvals()
    pep, ran = pep_of(respond, "sent", approvals=approvals)
    asked = pep.call(wire(), session()).approval
    assert asked is not None
    assert asked.request["context"]["arguments"]["amount"] == 100
    approvals.grant(asked.id, {"sub": "boss", "roles": ["payments.approver"]}, "2026-07-01T10:05:00Z")

    assert pep.call(wire(), session()).result == "sent"
    assert [each["amount"] for each in ran] == [100]
    assert approvals.get(asked.id).state == "consumed"


def test_approval_of_the_original_call_does_not_cover_the_transformed_call() -> None:
    def respond(request: dict[str, Any]) -> dict[str, Any]:
        if request["context"]["approval"] is None:
            return answer("STEP_UP")
        return answer("ALLOW", duty("transform", set={"amount": "much"}))

    approvals = Approvals()
    pep, ran = pep_of(respond, approvals=approvals)
    asked = pep.call(wire(), session()).approval
    assert asked is not None
    granted = approvals.grant(asked.id, {"sub": "boss", "roles": ["payments.approver"]}, "2026-07-01T10:05:00Z")
    rejected = pep.call(wire(), session())

    assert (rejected.allowed, rejected.approval, ran) == (False, None, [])
    assert approvals.get(asked.id) == granted
    assert isinstance(pep.audit, MemoryAudit)
    assert [event["approval_id"] for event in pep.audit.events[-2:]] == [asked.id, None]


def test_transformed_call_does_not_run_if_the_first_decision_cannot_be_recorded() -> None:
    class FailingOnce(MemoryAudit):
        takes = 0

        def append(self, event: AuditEvent) -> None:
            if not self.takes:
                self.takes += 1
                raise AuditError("disk full")
            super().append(event)

    pep, ran = pep_of(transforming_engine(set={"amount": 1}), own={"own": RecordingHandler()}, audit=FailingOnce())

    assert (pep.call(wire(), session()).codes, ran) == (("audit.write_failed",), [])
    assert isinstance(pep.engine, Scripted)
    assert len(pep.engine.asked) == 1


async def test_call_cancelled_during_its_second_decision_is_recorded() -> None:
    asked = asyncio.Event()

    class Waiting(Scripted):
        async def aevaluate(self, body: bytes, document: str = DECISION) -> bytes:
            if self.asked:
                asked.set()
                await asyncio.sleep(60)
            return self.evaluate(body, document)

    pep = Pep(EFFECTIVE, Waiting(transforming_engine(set={"amount": 1})), obligations={"own": RecordingHandler()})
    task = asyncio.create_task(pep.acall(wire(), session()))
    await asyncio.wait_for(asked.wait(), PATIENCE)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event[2] for event in recorded(pep)] == ["ALLOW", "DENY"]
