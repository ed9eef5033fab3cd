"""What a call of a framework came to, for the adapter to put in its framework's words."""

from enum import StrEnum
from typing import Any, Final, NamedTuple

from pdp.decision import Verdict
from pdp.flow.evaluation import Evaluation
from pdp.stores.approvals import Approval, ApprovalState


class OutcomeKind(StrEnum):
    """What there is to do: give the result (`RAN`), or only tell the model why there is none."""

    RAN = "ran"
    FAILED = "failed"
    DENIED = "denied"
    HELD = "held"
    DROPPED = "dropped"


class CallOutcome(NamedTuple):
    """One call's end. Nothing has run unless its kind is RAN or FAILED.

    Attributes:
        text: what the model is told, never empty: the result as text, or codes and what is missing.
        own: what the framework's executor returned, where that is still the result; else None, and `text` is.
        value: the result as JSON, where it is; None of what did not run.
        approval: what a HELD call waits for.
        error: what the tool raised.
    """

    kind: OutcomeKind
    text: str
    own: Any = None
    value: Any = None
    approval: Approval | None = None
    error: BaseException | None = None

    @property
    def is_error(self) -> bool:
        """Whether the model is told of an error: all but a result and a call that was dropped."""
        return self.kind not in (OutcomeKind.RAN, OutcomeKind.DROPPED)

    @property
    def pending(self) -> dict[str, Any] | None:
        """What a framework's pause carries, as JSON: `{approval_id, tool, reasons, approvers, expires_at}`."""
        approval = self.approval
        if approval is None:
            return None
        return {
            "approval_id": approval.id,
            "tool": approval.tool,
            "reasons": [*approval.reasons],
            "approvers": [*approval.approvers],
            "expires_at": approval.expires_at,
        }


UNDECIDED: Final = CallOutcome(OutcomeKind.DENIED, "pep.internal_error: the call could not be decided, and nothing ran")
LEFT_OUT: Final = CallOutcome(
    OutcomeKind.DENIED, "pdp.usage: the tool cannot run here, and nothing ran; the application's log says why"
)
UNKNOWN: Final = CallOutcome(
    OutcomeKind.FAILED, "pep.internal_error: the tool ran, and its result could not be delivered"
)


def outcome_of(evaluation: Evaluation, own: Any = None, content: Any = None) -> CallOutcome:
    """Return what an evaluation came to; `own` is the executor's, and `content` what the tool gave by it."""
    answer = evaluation.answer
    if evaluation.allowed:
        if evaluation.outcome.failure is not None:
            return CallOutcome(OutcomeKind.FAILED, answer.text, error=evaluation.error)
        same = own is not None and evaluation.result is content
        return CallOutcome(OutcomeKind.RAN, answer.text or "done", own if same else None, answer.result)
    if evaluation.pruned:
        return CallOutcome(OutcomeKind.DROPPED, answer.text)
    approval = evaluation.approval
    if evaluation.verdict is Verdict.STEP_UP and approval is not None and approval.state is ApprovalState.PENDING:
        return CallOutcome(OutcomeKind.HELD, answer.text, approval=approval)
    return CallOutcome(OutcomeKind.DENIED, answer.text)
