"""The object that the caller of a tool gets back: `Evaluation`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from pdp.contract.checks import Rejected
from pdp.decision import Decision, Obligation, Reason, Verdict
from pdp.errors import UsageError
from pdp.flow.stages import Decided, Ended, Executed
from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import Outcome, Trace

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.contract.invariants import Trip
    from pdp.model_calls import CallForm, ToolCall
    from pdp.stores.actions import Action
    from pdp.stores.approvals import Approval


class CallAnswer(NamedTuple):
    """The answer to a call for the model: a text, whether the text reports an error, and a result that is JSON."""

    text: str
    is_error: bool = False
    result: Any = None


class Evaluation:
    """The result of one proposal: its checks, decision and outcome. Immutable.

    Examples:
        >>> from pdp import Pep
        >>> with Pep.from_project("pdp.yaml") as pep:
        ...     evaluation = pep.decide({"tool": "shell", "arguments": {}}, {"claims": {"sub": "officer-123"}})
        >>> evaluation.allowed, evaluation.verdict, evaluation.outcome.rejection.code.value
        (False, None, 'INVALID_TOOL_NAME')
    """

    __slots__ = ("_decided", "_executed")

    def __init__(self, result: Ended | Decided | Executed) -> None:
        self._executed = result if isinstance(result, Executed) else None
        self._decided = result.decided if isinstance(result, Executed) else result

    def __repr__(self) -> str:
        why = f", {self.answer.text!r:.500}" if self.pruned or self.outcome.rejection or self.outcome.failure else ""
        return f"Evaluation({self.verdict or 'rejected'}, tool={self._decided.tool_name!r}, codes={self.codes}{why})"

    @property
    def allowed(self) -> bool:
        """Whether the verdict is ALLOW: the call may run, or ran."""
        return self._decided.allowed

    @property
    def decision(self) -> Decision | None:
        """The decision; None if a check or an invariant stopped the proposal before the policy was asked."""
        return self._decided.decision

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the decision; None without a decision."""
        return self._decided.decision.verdict if self._decided.decision else None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of the decision."""
        return self._decided.decision.reasons if self._decided.decision else ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the reasons, without duplicates, sorted."""
        return self._decided.decision.codes if self._decided.decision else ()

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """The obligations of the decision."""
        return self._decided.decision.obligations if self._decided.decision else ()

    @property
    def request(self) -> dict[str, Any] | None:
        """A copy of the request to the policy, as plain JSON; None if the policy was not asked."""
        decided = self._decided
        request: dict[str, Any] | None = orjson.loads(decided.prepared.body) if isinstance(decided, Decided) else None
        return request

    @property
    def flow(self) -> dict[str, Any] | None:
        """A copy of `context.flow`, the labels of run and call; None without a request, a run or tracked flow."""
        request = self.request
        return None if request is None else request["context"].get("flow")

    @property
    def executed(self) -> bool:
        """Whether the tool was started."""
        return self._executed is not None and self._executed.execution.started

    @property
    def replayed(self) -> bool:
        """Whether the result is the stored outcome of an earlier call, so the tool did not run again."""
        return self._executed is not None and self._executed.execution.replayed

    @property
    def result(self) -> Any:
        """The tool's result after obligations; None if the tool did not run or failed, or the result is withheld."""
        return self._executed.execution.result if self._executed else None

    @property
    def grant_id(self) -> str | None:
        """The id of the lasting grant with which the policy decided the call, or None."""
        grant = None if self.request is None else self.request["context"].get("grant")
        return None if grant is None else str(grant["id"])

    @property
    def approval(self) -> Approval | None:
        """The approval that this call opened, waits for, or used, or None."""
        return self._decided.approval

    @property
    def markings(self) -> tuple[str, ...]:
        """The markings of the result (obligation `mark_result`), sorted."""
        return tuple(sorted(self._executed.markings)) if self._executed else ()

    @property
    def retrieval_snapshot(self) -> str | None:
        """The snapshot from which the result was retrieved (obligation `pin_retrieval_snapshot`)."""
        return self._executed.retrieval_snapshot if self._executed else None

    @property
    def trips(self) -> tuple[Trip, ...]:
        """The invariants that the call violated, in the order in which they were checked."""
        return self._decided.checked.trips if self._decided.checked else ()

    @property
    def failed_check(self) -> str | None:
        """The check that failed before the policy was asked (see `pdp.contract.request.CHECKS`); None if all passed."""
        return self._decided.checked.check if isinstance(self._decided.checked, Rejected) else None

    @property
    def pruned(self) -> bool:
        """Whether an invariant removed the call from its plan, so the policy was not asked about the call."""
        return self._decided.pruned

    @property
    def action(self) -> Action | None:
        """The action of a call with effects: staged if the verdict was STEP_UP, committed or failed after a run."""
        if self._executed is not None:
            return self._executed.action
        return self._decided.action if isinstance(self._decided, Decided) else None

    @property
    def state(self) -> dict[str, Any] | None:
        """The session's state after the result; None if the tool does not change the state, or has no result."""
        return self._executed.state if self._executed else None

    @property
    def pins(self) -> dict[str, str]:
        """The version of each source that was pinned for the run when the tool ran, by source name."""
        return dict(self._executed.pins) if self._executed else {}

    @property
    def error(self) -> BaseException | None:
        """The exception that the tool raised; None if the tool raised none."""
        return self._executed.execution.error if self._executed else None

    @property
    def outcome(self) -> Outcome:
        """The outcome of the call: accepted, rejected or transformed, with the failure of its run, if any."""
        decided = self._decided
        if decided.allowed:
            failure = self._executed.execution.failure if self._executed else None
            proposal = decided.proposal
            # The proposal is copied, so that changes by the caller do not change the approval and later reads.
            if proposal is not None:
                proposal = replace(proposal, arguments=orjson.loads(proposal.text))
            return Outcome(decided.status, proposal=proposal, failure=failure)
        return Outcome(decided.status, rejection=decided.rejection)

    @property
    def answer(self) -> CallAnswer:
        """The answer for the model: the result, or the codes and messages of the rejection or failure."""
        outcome = self.outcome
        if outcome.rejection is not None:
            text = f"{outcome.rejection.code}: {outcome.rejection.reason}"
            if self.approval is not None:
                page = f"; its page: {self.approval.url}" if self.approval.url else ""
                text += f" (approval {self.approval.id} is {self.approval.state}{page})"
            return CallAnswer(text, is_error=True)
        if outcome.failure is not None:
            return CallAnswer(f"{outcome.failure.code}: {outcome.failure.message}", is_error=True)
        if self.pruned:
            return CallAnswer(f"dropped from the plan: {self.trips[-1].rule}")
        return _shown(self.result)

    @property
    def call(self) -> ToolCall | None:
        """The model's original call if the proposal came in a format of `pdp.model_calls`; else None."""
        return self._decided.asked.received.call

    def as_tool_result(self, form: CallForm | str | None = None) -> dict[str, Any]:
        """Return the message that gives the result of the call to the model.

        Args:
            form: the message format, see `pdp.model_calls`; by default the format of the model's call.

        Raises:
            UsageError: the format is unknown or cannot be derived, or the call was decided but not executed.
        """
        from pdp.model_calls import CallForm, ToolCall, tool_result  # noqa: PLC0415 - only for calls of a model's API

        call = self.call or ToolCall(self.trace.tool_call_id, self._decided.tool_name)
        form = form or call.form
        if form not in list(CallForm):
            problem = "the proposal does not have a form" if form is None else f"{form!r:.60} is not a form"
            raise UsageError(f"{problem} of a model's API", hint=f"pass one of {', '.join(CallForm)}")
        if self.allowed and self._executed is None:
            raise UsageError(
                "the call was decided but not run, so it has no result", hint="run the call with `Pep.call`"
            )
        answer = self.answer
        return tool_result(CallForm(form), call, answer.text, is_error=answer.is_error, result=answer.result)

    @property
    def trace(self) -> Trace:
        """The trace of the call, with the fields that the tool registry document defines."""
        checked, tool = self._decided.checked, self._decided.tool
        asked, received = self._decided.asked, self._decided.asked.received
        return Trace(
            tool_name=self._decided.tool_name or None,
            manifest_version=received.manifest.version,
            in_manifest=None if self._decided.proposal is None else tool is not None,
            schema_valid=checked.schema_valid if checked else None,
            risk_tier=tool.entry.risk_tier if tool else None,
            pdp_action=tool.entry.pdp_action if tool else None,
            idempotency_key=checked.idempotency_key if checked else None,
            idempotency_missing=checked.idempotency_missing if checked else None,
            request_id=asked.request_id,
            tool_call_id=received.tool_call_id,
            step_name=received.step_name,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pdp decide --json` prints. Its format is stable."""
        decision = self._decided.decision
        trace = self.trace
        return {
            "outcome": self.outcome.as_json(),
            "verdict": self.verdict,
            "reasons": [reason.as_json() for reason in self.reasons],
            "obligations": [obligation.as_json() for obligation in self.obligations],
            "trace": {name: getattr(trace, name) for name in Trace.__slots__},
            "decision_id": decision.decision_id if decision else None,
            "bundle_revision": decision.bundle_revision if decision else None,
        }


# Other objects are not shown as text, because it may be long or contain secrets, such as a password.
def _shown(result: Any) -> CallAnswer:
    try:
        check_json(result)
        return CallAnswer(result if isinstance(result, str) else canonical(result).decode(), result=result)
    except JsonValueError:
        return CallAnswer(result if isinstance(result, str) else "the result is not JSON")
