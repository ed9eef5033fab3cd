"""One call on its way through the enforcement point, and the events and the evaluation made of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from pdp.audit import AuditEvent
from pdp.canonical import JsonValueError, canonical
from pdp.contract.checks import Checked
from pdp.decision import Decision, Verdict
from pdp.evaluation import Evaluation
from pdp.proposal import Outcome, Proposal, Rejection, RejectionCode, Status, Trace

if TYPE_CHECKING:
    from pdp.audit import AuditLog
    from pdp.execution import Execution
    from pdp.manifest.effective import EffectiveManifest
    from pdp.request import Request
    from pdp.session import Session

_NAME_LENGTH = 128


class Call:
    """What is known of one call so far. The enforcement point fills it; nobody else sees it."""

    __slots__ = (
        "checked", "decision", "execution", "manifest", "proposal", "rejection", "request", "request_id", "session",
        "started", "step_name", "tool_call_id",
    )  # fmt: skip

    def __init__(self, manifest: EffectiveManifest, tool_call_id: str | None, step_name: str | None) -> None:
        self.manifest = manifest
        self.tool_call_id = tool_call_id
        self.step_name = step_name
        self.started = time.perf_counter()
        self.checked = Checked()
        self.session: Session | None = None
        self.request_id: str | None = None
        self.proposal: Proposal | None = None
        self.request: Request | None = None
        self.rejection: Rejection | None = None
        self.decision: Decision | None = None
        self.execution: Execution | None = None

    @property
    def allowed(self) -> bool:
        """Whether the tool may run."""
        return self.rejection is None and self.decision is not None and self.decision.verdict is Verdict.ALLOW

    @property
    def tool_name(self) -> str:
        """The proposed name, at most 128 characters of it, or the empty string."""
        return self.proposal.tool[:_NAME_LENGTH] if self.proposal else ""

    @property
    def timeout(self) -> float | None:
        """Seconds that the tool may take, or None."""
        tool = self.checked.tool
        return tool.timeout if tool else None

    def arguments(self) -> dict[str, Any]:
        """Return the decided arguments, as a copy that shares nothing with what the caller holds."""
        if self.proposal is None:
            raise TypeError("a call without a proposal has no arguments")
        decided: dict[str, Any] = orjson.loads(canonical(self.proposal.arguments))
        return decided

    def reject(self, code: RejectionCode, reason: str) -> None:
        """Reject the proposal before the policy is asked."""
        self.rejection = Rejection(code=code, reason=reason)

    def evaluation(self) -> Evaluation:
        """Return what the caller of the enforcement point sees."""
        execution = self.execution
        return Evaluation.model_construct(
            outcome=self._outcome(),
            decision=self.decision,
            trace=self._trace(),
            request=self.request.as_json() if self.request else None,
            executed=execution is not None,
            result=execution.result if execution else None,
        )

    def _outcome(self) -> Outcome:
        if self.allowed:
            failure = self.execution.failure if self.execution else None
            return Outcome.model_construct(
                status=Status.ACCEPTED, proposal=self.proposal, rejection=None, failure=failure
            )
        rejection = self.rejection
        if rejection is None and self.decision is not None:
            why = "; ".join(f"{reason.code}: {reason.message}" for reason in self.decision.reasons)
            rejection = Rejection(code=RejectionCode.POLICY_VIOLATION, reason=f"{self.decision.verdict}: {why}")
        return Outcome.model_construct(status=Status.REJECTED, proposal=None, rejection=rejection, failure=None)

    def _trace(self) -> Trace:
        checked, tool = self.checked, self.checked.tool
        return Trace.model_construct(
            tool_name=self.tool_name or None,
            manifest_version=self.manifest.version,
            in_manifest=None if self.proposal is None else tool is not None,
            schema_valid=checked.schema_valid,
            risk_tier=tool.entry.risk_tier if tool else None,
            pdp_action=tool.entry.pdp_action if tool else None,
            idempotency_key=checked.idempotency_key,
            idempotency_missing=checked.idempotency_missing,
            request_id=self.request_id,
            tool_call_id=self.tool_call_id,
            step_name=self.step_name,
        )


def dispatch_event(call: Call, log: AuditLog) -> AuditEvent:
    """Return the event of a proposal that was decided or rejected, before anything runs."""
    decision = call.decision
    return _event(
        call,
        log,
        "dispatch",
        status=Status.ACCEPTED if call.allowed else Status.REJECTED,
        rejection=call.rejection.code if call.rejection else None if call.allowed else RejectionCode.POLICY_VIOLATION,
        verdict=decision.verdict if decision else None,
        codes=decision.codes if decision else (),
    )


def result_event(call: Call, log: AuditLog) -> AuditEvent:
    """Return the event of a tool that ran, or should have."""
    execution = call.execution
    failure = execution.failure if execution else None
    unknown = failure is not None and failure.details.get("effect") == "unknown"
    return _event(
        call,
        log,
        "result",
        status=Status.ACCEPTED,
        outcome="unknown" if unknown else "failed" if failure else "succeeded",
        result_digest=_result_digest(execution.result, log) if execution and not failure else None,
        error_code=failure.code if failure else None,
        duration_ms=round((time.perf_counter() - call.started) * 1000, 3),
    )


def _event(call: Call, log: AuditLog, what: str, **fields: Any) -> AuditEvent:
    session, proposal, decision, known = call.session, call.proposal, call.decision, call.checked.tool is not None
    subject = session.claims.get("sub") if session else None
    return AuditEvent(
        time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        # A name that is in no manifest is the model's text; it does not become part of a type that alerts key on.
        type=f"tool.{call.tool_name if known else 'unknown'}.{what}",
        request_id=call.request_id,
        tool_call_id=call.tool_call_id,
        run_id=session.run_id if session else None,
        subject=subject if isinstance(subject, str) else None,
        agent=session.agent if session else None,
        tool=call.tool_name or None,
        manifest_version=call.manifest.version,
        manifest_digest=call.manifest.digest,
        arguments_digest=log.digest(canonical(proposal.arguments)) if proposal else None,
        decision_id=decision.decision_id if decision else None,
        bundle_revision=decision.bundle_revision if decision else None,
        idempotency_key=call.checked.idempotency_key,
        **fields,
    )


def _result_digest(result: Any, log: AuditLog) -> str | None:
    try:
        return log.digest(canonical(result))
    except JsonValueError:
        # A result that is no JSON has no digest, and that is not the tool's fault.
        return None
