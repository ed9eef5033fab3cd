"""What an enforcement point gives back: everything that is known about one proposal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.errors import PdpError
from pdp.proposal import Outcome, Status, Trace


class Evaluation(BaseModel):
    """One proposal, from its checks to its result.

    Attributes:
        outcome: accepted, rejected or transformed, and a failure of the execution.
        decision: None when the policy was not asked, because a check before it failed.
        trace: the registry document's trace fields.
        request: what the policy was asked, as plain JSON; None when it was not asked.
        executed: whether the tool was started.
        result: what the tool returned; None when it was not executed or failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    outcome: Outcome
    decision: Decision | None
    trace: Trace
    request: dict[str, Any] | None
    executed: bool = False
    result: Any = None

    @property
    def allowed(self) -> bool:
        """Whether this call may run: the verdict is ALLOW and nothing has rejected the proposal since."""
        return self.verdict is Verdict.ALLOW and self.outcome.status is not Status.REJECTED

    @property
    def verdict(self) -> Verdict | None:
        """The decision's verdict; None when the policy was not asked."""
        return self.decision.verdict if self.decision else None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The decision's reasons."""
        return self.decision.reasons if self.decision else ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons' codes, each once, sorted."""
        return self.decision.codes if self.decision else ()

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """The decision's obligations."""
        return self.decision.obligations if self.decision else ()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp decide --json` prints; its form is stable."""
        return {
            "outcome": self.outcome.model_dump(mode="json", exclude_none=True),
            "verdict": self.verdict,
            "reasons": [reason.model_dump(mode="json") for reason in self.reasons],
            "obligations": [obligation.model_dump(mode="json") for obligation in self.obligations],
            "trace": self.trace.model_dump(mode="json"),
            "decision_id": self.decision.decision_id if self.decision else None,
            "bundle_revision": self.decision.bundle_revision if self.decision else None,
        }


class ToolDeniedError(PdpError):
    """A guarded function was called and may not run. `evaluation` says why."""

    code = "pdp.tool_denied"

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        rejection = evaluation.outcome.rejection
        super().__init__(f"{rejection.code}: {rejection.reason}" if rejection else "the call may not run")


class ToolFailedError(PdpError):
    """A guarded function was allowed to run and gave no result. `evaluation.outcome.failure` says how it failed."""

    code = "pdp.tool_failed"

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        failure = evaluation.outcome.failure
        super().__init__(f"{failure.code}: {failure.message}" if failure else "the tool gave no result")
