"""What the caller of an enforcement point gets back: one proposal, from its checks to its result."""

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

if TYPE_CHECKING:  # only some calls load these
    from pdp.contract.invariants import Trip
    from pdp.model_calls import CallForm, ToolCall
    from pdp.stores.actions import Action
    from pdp.stores.approvals import Approval


class CallAnswer(NamedTuple):
    """What a model sees of a call: a text; whether it says why there is no result; the result, where that is JSON."""

    text: str
    is_error: bool = False
    result: Any = None


class Evaluation:
    """One proposal, from its checks to its result. Immutable."""

    __slots__ = ("_decided", "_executed")

    def __init__(self, result: Ended | Decided | Executed) -> None:
        self._executed = result if isinstance(result, Executed) else None
        self._decided = result.decided if isinstance(result, Executed) else result

    def __repr__(self) -> str:
        why = f", {self.answer.text!r:.500}" if self.pruned or self.outcome.rejection or self.outcome.failure else ""
        return f"Evaluation({self.verdict or 'rejected'}, tool={self._decided.tool_name!r}, codes={self.codes}{why})"

    @property
    def allowed(self) -> bool:
        """Whether this call may run, or ran: the verdict is ALLOW."""
        return self._decided.allowed

    @property
    def decision(self) -> Decision | None:
        """The decision; None when a check rejected or pruned the proposal before the policy was asked."""
        return self._decided.decision

    @property
    def verdict(self) -> Verdict | None:
        """The decision's verdict; None when there is no decision."""
        return self._decided.decision.verdict if self._decided.decision else None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The decision's reasons."""
        return self._decided.decision.reasons if self._decided.decision else ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons' codes, each once, sorted."""
        return self._decided.decision.codes if self._decided.decision else ()

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """The decision's obligations."""
        return self._decided.decision.obligations if self._decided.decision else ()

    @property
    def request(self) -> dict[str, Any] | None:
        """What the policy was asked, as plain JSON and a copy; None when it was not asked."""
        decided = self._decided
        request: dict[str, Any] | None = orjson.loads(decided.prepared.body) if isinstance(decided, Decided) else None
        return request

    @property
    def flow(self) -> dict[str, Any] | None:
        """What the ledger says of the call (`context.flow`), a copy; None where labels are not in use, or no run is."""
        request = self.request
        return None if request is None else request["context"].get("flow")

    @property
    def executed(self) -> bool:
        """Whether the tool was started."""
        return self._executed is not None and self._executed.execution.started

    @property
    def replayed(self) -> bool:
        """Whether an earlier call came to this, and the tool was not asked again."""
        return self._executed is not None and self._executed.execution.replayed

    @property
    def result(self) -> Any:
        """What the tool returned, as obligations leave it; None when it was not executed, failed, or is withheld."""
        return self._executed.execution.result if self._executed else None

    @property
    def approval(self) -> Approval | None:
        """The approval that a STEP_UP of `call` opened or found pending, or that let this call through."""
        return self._decided.approval

    @property
    def markings(self) -> tuple[str, ...]:
        """The markings that the result carries (obligation `mark_result`), sorted."""
        return tuple(sorted(self._executed.markings)) if self._executed else ()

    @property
    def retrieval_snapshot(self) -> str | None:
        """The snapshot that the result was retrieved from (obligation `pin_retrieval_snapshot`)."""
        return self._executed.retrieval_snapshot if self._executed else None

    @property
    def trips(self) -> tuple[Trip, ...]:
        """The invariants that tripped, in their order."""
        return self._decided.checked.trips if self._decided.checked else ()

    @property
    def failed_check(self) -> str | None:
        """The check before the policy that stopped the call, of `pdp.contract.request.CHECKS`; None when none has."""
        return self._decided.checked.check if isinstance(self._decided.checked, Rejected) else None

    @property
    def pruned(self) -> bool:
        """Whether an invariant dropped the call: nothing was decided, and nothing runs."""
        return self._decided.pruned

    @property
    def action(self) -> Action | None:
        """The action of a call with effects, as it was left: staged by a STEP_UP, committed or failed by its run."""
        if self._executed is not None:
            return self._executed.action
        return self._decided.action if isinstance(self._decided, Decided) else None

    @property
    def state(self) -> dict[str, Any] | None:
        """The session's state as the result leaves it; None when the tool declares no state effects, or gave none."""
        return self._executed.state if self._executed else None

    @property
    def pins(self) -> dict[str, str]:
        """The versions of the pinned sources that the tool could use, by source."""
        return dict(self._executed.pins) if self._executed else {}

    @property
    def error(self) -> BaseException | None:
        """What the tool raised, if it did."""
        return self._executed.execution.error if self._executed else None

    @property
    def outcome(self) -> Outcome:
        """Accepted, rejected or transformed, and how an execution failed."""
        decided = self._decided
        if decided.allowed:
            failure = self._executed.execution.failure if self._executed else None
            proposal = decided.proposal
            if proposal is not None:  # a copy, as an approval or a later look at the evaluation shows the same call
                proposal = replace(proposal, arguments=orjson.loads(proposal.text))
            return Outcome(decided.status, proposal=proposal, failure=failure)
        return Outcome(decided.status, rejection=decided.rejection)

    @property
    def answer(self) -> CallAnswer:
        """What the model sees of the call: its result, or codes and messages that are meant for it."""
        outcome = self.outcome
        if outcome.rejection is not None:
            text = f"{outcome.rejection.code}: {outcome.rejection.reason}"
            if self.approval is not None:
                text += f" (approval {self.approval.id} is {self.approval.state})"
            return CallAnswer(text, is_error=True)
        if outcome.failure is not None:
            return CallAnswer(f"{outcome.failure.code}: {outcome.failure.message}", is_error=True)
        if self.pruned:
            return CallAnswer(f"dropped from the plan: {self.trips[-1].rule}")
        return _shown(self.result)

    @property
    def call(self) -> ToolCall | None:
        """The model's call, where the proposal was one in the form of a model's API, or a `ToolCall`."""
        return self._decided.asked.received.call

    def as_tool_result(self, form: CallForm | str | None = None) -> dict[str, Any]:
        """Return what goes back to the model's API for this call, in a form of `pdp.model_calls`, the call's own first.

        UsageError: not a form, or none where the proposal has none either; the call was decided and not made.
        """
        from pdp.model_calls import CallForm, ToolCall, tool_result  # noqa: PLC0415 - only calls of a model's API

        call = self.call or ToolCall(self.trace.tool_call_id, self._decided.tool_name)
        form = form or call.form
        if form not in list(CallForm):
            problem = "the proposal is not a call in a form" if form is None else f"{form!r:.60} is not a form"
            raise UsageError(f"{problem} of a model's API", hint=f"pass one of {', '.join(CallForm)}")
        if self.allowed and self._executed is None:
            raise UsageError("the call was decided and not made: it has no result", hint="use `Pep.call`")
        answer = self.answer
        return tool_result(CallForm(form), call, answer.text, is_error=answer.is_error, result=answer.result)

    @property
    def trace(self) -> Trace:
        """The registry document's trace fields."""
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
        """Return the object that `pdp decide --json` prints; its form is stable."""
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


# The text of another object may contain anything, such as the password of a connection, and be of any length.
def _shown(result: Any) -> CallAnswer:
    try:
        check_json(result)
        return CallAnswer(result if isinstance(result, str) else canonical(result).decode(), result=result)
    except JsonValueError:
        return CallAnswer(result if isinstance(result, str) else "a result that is not JSON")
