"""What a remote decision gives back: the service's answer, read into the records that a local decision has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pdp.contract.checks import Rejected
from pdp.contract.invariants import Trip  # noqa: TC001 - pydantic reads the annotations
from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.errors import AnswerInvalidError
from pdp.evaluation import Evaluation
from pdp.flow.stages import Asked, Decided, Executed
from pdp.json import JsonValueError, canonical, frozen
from pdp.proposal import Execution, Failure, Proposal, Rejection, Status, Trace
from pdp.stores.actions import Action  # noqa: TC001 - likewise
from pdp.stores.approvals import Approval


class _Outcome(BaseModel):
    status: Status
    proposal: dict[str, Any] | None = None
    rejection: Rejection | None = None
    failure: Failure | None = None


class ServiceAnswer(BaseModel):
    """The answer of `POST /v1/proposals` and of its `/result`; what else is in it is not read."""

    model_config = ConfigDict(frozen=True)

    id: str
    begun: bool
    arguments: dict[str, Any] | None = None
    executed: bool
    replayed: bool
    result: Any = None
    approval: dict[str, Any] | None
    action: Action | None
    outcome: _Outcome
    verdict: Verdict | None
    reasons: tuple[Reason, ...]
    obligations: tuple[Obligation, ...]
    trace: Trace
    decision_id: str | None
    bundle_revision: str | None
    manifest_digest: str | None = None
    failed_check: str | None = None
    trips: tuple[Trip, ...] = ()
    markings: frozenset[str] = frozenset()
    retrieval_snapshot: str | None = None
    state: dict[str, Any] | None = None


_APPROVAL: Final = TypeAdapter(Approval)


class RemoteEvaluation(Evaluation):
    """An evaluation whose decision the service has made; `request`, `flow` and `pins` stay there.

    `known`: what the call came to here, in the place of what the service knows; `error`: what the tool raised.
    """

    __slots__ = ("failed_check", "trace", "trips")

    def __init__(
        self,
        asked: Asked,
        answer: ServiceAnswer,
        known: Execution | None = None,
        *,
        error: BaseException | None = None,
    ) -> None:
        outcome, decision = answer.outcome, None
        if answer.verdict is not None:
            reasons = tuple(replace(each, details=frozen(each.details)) for each in answer.reasons)
            duties = tuple(replace(each, parameters=frozen(each.parameters)) for each in answer.obligations)
            identity = answer.decision_id or "", answer.bundle_revision, None
            decision = Decision(answer.verdict, reasons, duties, *identity)
        proposal = asked.proposal if outcome.proposal is None else Proposal.read(outcome.proposal)
        received = asked.received._replace(transformed=outcome.status is Status.TRANSFORMED)
        self.failed_check = answer.failed_check  # type: ignore[misc]
        self.trips = answer.trips  # type: ignore[misc]
        self.trace = answer.trace  # type: ignore[misc]
        decided = Decided(
            asked._replace(received=received, proposal=proposal),
            None if decision else Rejected(answer.failed_check or "", proposal, outcome.rejection),
            decision,
            approval=None if answer.approval is None else approval_of(answer.approval),
            action=answer.action,
        )
        if known is None and (answer.executed or answer.replayed or outcome.failure is not None):
            started, replayed = answer.executed, answer.replayed
            known = Execution(answer.result, outcome.failure, error, started=started, replayed=replayed)
        executed = None
        if known is not None:
            found = answer.markings, answer.retrieval_snapshot
            executed = Executed(decided, known, answer.action, *found, state=answer.state)
        super().__init__(decided, executed)


def read_answer(answer: dict[str, Any], call_id: str, *, may_run: bool = False) -> ServiceAnswer:
    """Return an answer of the service; AnswerInvalidError where it is of another shape, or about another call.

    `may_run`: whether the call may have begun by it.
    """
    try:
        read = ServiceAnswer.model_validate_json(orjson.dumps(answer), strict=True)
    except ValidationError as error:
        at = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise AnswerInvalidError(f"the service's answer is not one about a call: {at:.80}") from None
    if read.id != call_id:
        raise AnswerInvalidError("the service's answer is about another call")
    if read.begun and not (may_run and read.verdict is Verdict.ALLOW and read.arguments is not None):
        raise AnswerInvalidError("the service's answer says that a call has begun that may not run")
    return read


def approval_of(record: Any) -> Approval:
    """Return an approval from the service's record of it; AnswerInvalidError where it is of another shape."""
    try:
        whole = dict(record)
        return _APPROVAL.validate_python({**whole, "body": canonical(whole.pop("request"))})
    except (ValidationError, JsonValueError, KeyError, TypeError, ValueError):
        raise AnswerInvalidError("the service's answer is not an approval") from None
