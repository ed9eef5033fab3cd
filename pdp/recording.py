"""The audit events of a call: one before anything runs, one after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pdp.call import recordable
from pdp.canonical import JsonValueError, canonical, check_json
from pdp.clock import to_milliseconds
from pdp.proposal import RejectionCode, Status

if TYPE_CHECKING:
    from pdp.audit import AuditEvent, AuditLog
    from pdp.call import Call


def dispatch_event(call: Call, log: AuditLog) -> AuditEvent:
    """Return the event of a proposal that was decided or rejected, before anything runs."""
    event = _event(call, log, "dispatch", call.now)
    # Without it, a call that was only asked about would look like one whose end nobody recorded.
    event["outcome"] = None if call.runs else "not_executed"
    decision = call.decision
    if call.allowed:
        event["status"] = Status.ACCEPTED
    else:
        event["status"] = Status.REJECTED
        event["rejection"] = call.rejection.code if call.rejection else RejectionCode.POLICY_VIOLATION
    if decision is not None:
        event["verdict"] = decision.verdict
        event["codes"] = decision.codes
    return event


def result_event(call: Call, log: AuditLog) -> AuditEvent:
    """Return the event of a tool that ran, or should have."""
    event = _event(call, log, "result", time.time())
    event["status"] = Status.ACCEPTED
    event["duration_ms"] = round((time.perf_counter() - call.started) * 1000, 3)
    execution = call.execution
    failure = execution.failure if execution else None
    if failure is not None:
        event["outcome"] = "unknown" if failure.details.get("effect") == "unknown" else "failed"
        event["error_code"] = failure.code
    else:
        event["outcome"] = "succeeded"
        event["result_digest"] = _result_digest(execution.result if execution else None, log)
    return event


def _event(call: Call, log: AuditLog, what: str, now: float) -> AuditEvent:
    session, proposal, decision = call.session, call.proposal, call.decision
    event: AuditEvent = {
        "time": to_milliseconds(now),
        # A name that is in no manifest is the model's text; it does not become part of a type that alerts key on.
        "type": f"tool.{call.tool_name if call.checked.tool else 'unknown'}.{what}",
        "request_id": recordable(call.request_id),
        "tool_call_id": call.tool_call_id,
        "tool": recordable(call.tool_name or None),
        "manifest_version": call.manifest.version,
        "manifest_digest": call.manifest.digest,
        "idempotency_key": recordable(call.checked.idempotency_key),
    }
    if session is not None:
        event["subject"] = recordable(session.claims.get("sub"))
        event["agent"] = recordable(session.agent or _acting(session.claims))
        event["run_id"] = recordable(session.run_id)
    if proposal is not None:
        event["arguments_digest"] = log.digest(proposal.text)
    if decision is not None:
        event["decision_id"] = decision.decision_id
        event["bundle_revision"] = decision.bundle_revision
    return event


def _acting(claims: dict[str, Any]) -> object:
    act = claims.get("act")
    return act.get("sub") if isinstance(act, dict) else None


def _result_digest(result: Any, log: AuditLog) -> str | None:
    try:
        check_json(result)
        return log.digest(canonical(result))
    except JsonValueError:
        # A result that is no JSON has no digest, and that is not the tool's fault.
        return None
