"""The audit events of a call: one for each decision before anything runs, one after."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.file import recordable
from pdp.clock import to_milliseconds
from pdp.decision import denied
from pdp.errors import AuditError
from pdp.execution.run import unrecorded
from pdp.execution.telemetry import Dispatch
from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import RejectionCode, Status

if TYPE_CHECKING:
    from pdp.audit.file import AuditEvent, AuditLog
    from pdp.flow.call import Call

_log = logging.getLogger("pdp.pep")

_SHARED: Final = ("agent", "arguments_digest", "idempotency_key", "request_id", "tool_call_id")


def record_dispatch(call: Call, log: AuditLog, *, superseded: bool = False) -> None:
    """Record a proposal that was decided or rejected, before anything runs; if that fails, deny the call.

    `superseded`: another proposal takes its place, and this one will not run.
    """
    try:
        log.append(_dispatch_event(call, log, superseded=superseded))
    except Exception as error:  # noqa: BLE001 - whoever was about to execute must not
        _log.exception("an audit event could not be written, which is a DENY")
        call.deny(denied(AuditError.code, str(error) if isinstance(error, AuditError) else "audit failed"))


def record_result(call: Call, log: AuditLog) -> None:
    """Record what a tool that ran, or should have, came to; if that fails, its outcome is unknown."""
    try:
        log.append(_result_event(call, log))
    except Exception:  # noqa: BLE001 - the tool ran; its caller has to know that much
        _log.critical("a tool ran and its result could not be recorded: the outcome is unknown", exc_info=True)
        call.execution, call.delivery = unrecorded(), None


def dispatch_of(call: Call, log: AuditLog) -> Dispatch:
    """Return what telemetry is told of a call that has been decided."""
    event = _event(call, log, "dispatch", call.now)
    tool = call.checked.tool
    return Dispatch(
        tool=tool.entry.name if tool else "unknown",
        verdict=call.decision.verdict if call.decision else None,
        began=call.now,
        scopes=tuple(tool.entry.scopes or ()) if tool else (),
        caller=_text(event.get("subject")),
        step_name=call.step_name,
        **{name: _text(event.get(name)) for name in _SHARED},
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def log_decision(call: Call) -> None:
    """Log the decision, where an obligation says at which level. What was proposed is not in the line."""
    level, decision = call.duties.log_level, call.decision
    if level is not None and decision is not None and call.checked.tool is not None:
        tool, codes = call.checked.tool.entry.name, ", ".join(decision.codes)
        _log.log(level, "%s for %s: %s (decision %s)", decision.verdict, tool, codes, decision.decision_id)


def _dispatch_event(call: Call, log: AuditLog, *, superseded: bool) -> AuditEvent:
    event = _event(call, log, "dispatch", call.now)
    # Without it, a call that was only asked about would look like one whose end nobody recorded.
    event["outcome"] = None if call.runs and not superseded else "not_executed"
    decision = call.decision
    if superseded:
        event["status"] = Status.TRANSFORMED
    elif call.pruned:
        event["status"], event["outcome"] = Status.TRANSFORMED, "not_executed"
    elif call.allowed:
        event["status"] = call.accepted
    else:
        event["status"] = Status.REJECTED
        event["rejection"] = call.rejection.code if call.rejection else RejectionCode.POLICY_VIOLATION
    if decision is not None:
        event["verdict"] = decision.verdict
        event["codes"] = decision.codes
    return event


def _result_event(call: Call, log: AuditLog) -> AuditEvent:
    event = _event(call, log, "result", time.time())
    event["status"] = call.accepted
    event["duration_ms"] = round((time.perf_counter() - call.started) * 1000, 3)
    execution = call.execution
    failure = execution.failure if execution else None
    if failure is not None:
        event["outcome"] = "unknown" if failure.details.get("effect") == "unknown" else "failed"
        event["error_code"] = failure.code
    else:
        event["outcome"] = "succeeded"
        event["result_digest"] = result_digest(execution.result if execution else None, log)
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
    if call.approval is not None:
        event["approval_id"] = call.approval.id
    return event


def _acting(claims: dict[str, Any]) -> object:
    act = claims.get("act")
    return act.get("sub") if isinstance(act, dict) else None


def result_digest(result: Any, log: AuditLog) -> str | None:
    """Return the keyed digest of a result; None for one that is no JSON."""
    try:
        check_json(result)
        return log.digest(canonical(result))
    except JsonValueError:
        # A result that is no JSON has no digest, and that is not the tool's fault.
        return None
