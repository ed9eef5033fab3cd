"""Evaluations and approvals, made from the answers of the decision service."""

from dataclasses import replace
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from pdp.contract.checks import Rejected
from pdp.decision import Decision, Verdict
from pdp.errors import AnswerInvalidError
from pdp.flow.evaluation import Evaluation
from pdp.flow.stages import Asked, Ended, Executed
from pdp.json import JsonValueError, frozen
from pdp.proposal import Execution, Proposal, Status
from pdp.service.models.approvals import ApprovalBody
from pdp.service.models.proposals import ProposalAnswer
from pdp.stores.approvals import Approval

_APPROVAL: Final = TypeAdapter(ApprovalBody)


class RemoteEvaluation(Evaluation):
    """An evaluation whose decision the service made. `request` and `flow` are None, and `pins` is empty.

    `asked` is the call that was sent. `known` is the outcome in this process, which replaces the answer's outcome.
    """

    __slots__ = ("action", "failed_check", "trace", "trips")

    def __init__(
        self,
        asked: Asked,
        answer: ProposalAnswer,
        known: Execution | None = None,
        *,
        error: BaseException | None = None,
    ) -> None:
        outcome, decision = answer.outcome, None
        if answer.verdict is not None:
            reasons = tuple(replace(each, details=frozen(each.details)) for each in answer.reasons)
            obligations = tuple(replace(each, parameters=frozen(each.parameters)) for each in answer.obligations)
            identity = answer.decision_id or "", answer.bundle_revision, None
            decision = Decision(answer.verdict, reasons, obligations, *identity)
        proposal = asked.proposal if outcome.proposal is None else Proposal.read(outcome.proposal)
        received = asked.received._replace(transformed=outcome.status is Status.TRANSFORMED)
        self.action = answer.action  # type: ignore[misc]
        self.failed_check = answer.failed_check  # type: ignore[misc]
        self.trips = answer.trips  # type: ignore[misc]
        self.trace = answer.trace  # type: ignore[misc]
        ended = Ended(
            asked._replace(received=received, proposal=proposal),
            None if decision else Rejected(answer.failed_check or "", proposal, outcome.rejection),
            decision,
            answer.approval and answer.approval.record(),
        )
        if known is None and (answer.executed or answer.replayed or outcome.failure is not None):
            started, replayed = answer.executed, answer.replayed
            known = Execution(answer.result, outcome.failure, error, started=started, replayed=replayed)
        origin = answer.markings, answer.retrieval_snapshot
        super().__init__(ended if known is None else Executed(ended, known, answer.action, *origin, state=answer.state))


def read_answer(answer: dict[str, Any], call_id: str, *, may_run: bool = False) -> ProposalAnswer:
    """Parse the answer. Raise `AnswerInvalidError` if it is malformed, or begins a call that must not run."""
    try:
        read = ProposalAnswer.model_validate_json(orjson.dumps(answer), strict=True)
    except ValidationError as error:
        at = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise AnswerInvalidError(f"the service's answer about the call is malformed: {at:.80}") from None
    if read.id != call_id:
        raise AnswerInvalidError("the service's answer is about another call")
    if read.begun and not (may_run and read.verdict is Verdict.ALLOW and read.arguments is not None):
        raise AnswerInvalidError("the service's answer starts a call that the verdict does not allow")
    return read


def approval_of(record: Any) -> Approval:
    """Return an approval, read from the service's record; raise `AnswerInvalidError` if the record is malformed."""
    try:
        return _APPROVAL.validate_python(record).record()
    except (ValidationError, JsonValueError, ValueError):
        raise AnswerInvalidError("the service's answer is not an approval") from None
