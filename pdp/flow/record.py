"""The audit events of a call: one for each decision before anything runs, one after."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import recordable
from pdp.clock import to_milliseconds
from pdp.errors import AuditError
from pdp.flow.drive import Work
from pdp.flow.stages import Executed
from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import RejectionCode, Status

if TYPE_CHECKING:
    from collections.abc import Generator

    from pdp.audit.chain import AuditEvent, AuditLog
    from pdp.flow.drive import Step
    from pdp.flow.stages import Decided

_log = logging.getLogger("pdp.pep")

_SHARED: Final = ("agent", "arguments_digest", "idempotency_key", "request_id", "tool_call_id")


def record_decision(decided: Decided, log: AuditLog, *, superseded: bool = False) -> Generator[Step, Any, Decided]:
    """Record a proposal that was decided or rejected, before anything runs; if that fails, return it denied.

    `superseded`: another proposal takes its place, and this one will not run.
    """
    try:
        waiting = log.offer(_decision_event(decided, log, superseded=superseded))
        if waiting is not None:
            yield Work(waiting, blocking=True)
    except Exception as error:  # noqa: BLE001 - whoever was about to execute must not
        _log.exception("an audit event could not be written, which is a DENY")
        return decided.denied(AuditError.code, str(error) if isinstance(error, AuditError) else "audit failed")
    return decided


def record_result(executed: Executed, log: AuditLog) -> Generator[Step, Any, Executed]:
    """Record what a tool that ran, or should have, came to.

    If that fails, the outcome of a tool that ran is unknown; one that was refused stays refused.
    """
    try:
        waiting = log.offer(_result_event(executed, log))
        if waiting is not None:
            yield Work(waiting, blocking=True)
    except Exception:  # noqa: BLE001 - the tool ran; its caller has to know that much
        from pdp.execution.runner import unrecorded  # noqa: PLC0415 - an alarm, not the way of every call

        _log.critical("the result of an allowed call could not be recorded", exc_info=True)
        if executed.execution.failure is not None and not executed.execution.started:
            return executed
        return Executed(executed.decided, unrecorded(), executed.action)
    return executed


def telemetry_attributes(decided: Decided, log: AuditLog) -> dict[str, Any]:
    """Return the attributes of the dispatch span of a call that has been decided."""
    received, tool = decided.asked.received, decided.tool
    event = _event(decided, log, "dispatch", received.now)
    stated = {
        "pdp.verdict": decided.decision.verdict if decided.decision else None,
        "pdp.caller": event.get("subject"),
        "pdp.scopes": tuple(tool.entry.scopes or ()) if tool else (),
        "pdp.step_name": received.step_name,
        **{f"pdp.{name}": event.get(name) for name in _SHARED},
    }
    return {name: value for name, value in stated.items() if value is not None}


def log_decision(decided: Decided, level: int) -> None:
    """Log the decision at the level that an obligation names. What was proposed is not in the line."""
    decision, tool = decided.decision, decided.tool
    if decision is not None and tool is not None:
        codes = ", ".join(decision.codes)
        _log.log(level, "%s for %s: %s (decision %s)", decision.verdict, tool.entry.name, codes, decision.decision_id)


def _decision_event(decided: Decided, log: AuditLog, *, superseded: bool) -> AuditEvent:
    event = _event(decided, log, "dispatch", decided.asked.received.now)
    # Without it, a call that was only asked about would look like one whose end nobody recorded.
    received = decided.asked.received
    executes = received.to_run and received.staged is None and not superseded and not decided.pruned
    event["outcome"] = None if executes else "not_executed"
    status = Status.TRANSFORMED if superseded else decided.status
    event["status"] = status
    if status is Status.REJECTED:
        event["rejection"] = decided.rejection.code if decided.rejection else RejectionCode.POLICY_VIOLATION
    if decided.decision is not None:
        event["verdict"] = decided.decision.verdict
        event["codes"] = decided.decision.codes
    return event


def _result_event(executed: Executed, log: AuditLog) -> AuditEvent:
    decided, execution = executed.decided, executed.execution
    event = _event(decided, log, "result", time.time())
    event["status"] = decided.status
    event["duration_ms"] = round((time.perf_counter() - decided.asked.received.started) * 1000, 3)
    event["outcome"] = execution.outcome
    if execution.failure is not None:
        event["error_code"] = execution.failure.code
    else:
        event["result_digest"] = result_digest(execution.result, log)
    return event


def _event(decided: Decided, log: AuditLog, phase: str, now: float) -> AuditEvent:
    asked, checked, decision = decided.asked, decided.checked, decided.decision
    proposal, tool = (asked.proposal, None) if checked is None else (checked.proposal, checked.tool)
    event: AuditEvent = {
        "time": to_milliseconds(now),
        # A name that is in no manifest is the model's text; it does not become part of a type that alerts key on.
        "type": f"tool.{tool.entry.name if tool else 'unknown'}.{phase}",
        "request_id": recordable(asked.request_id),
        "tool_call_id": asked.received.tool_call_id,
        "tool": tool.entry.name if tool else recordable(decided.tool_name or None),
        "manifest_version": asked.received.manifest.version,
        "manifest_digest": asked.received.manifest.digest,
        "idempotency_key": recordable(checked.idempotency_key) if checked else None,
    }
    session = asked.session
    if session is not None:
        event["subject"] = recordable(session.claims.get("sub"))
        act = session.claims.get("act")
        event["agent"] = recordable(session.agent or (act.get("sub") if isinstance(act, dict) else None))
        event["run_id"] = recordable(session.run_id)
    if proposal is not None:
        event["arguments_digest"] = log.digest(proposal.text)
    if decision is not None:
        event["decision_id"] = decision.decision_id
        event["bundle_revision"] = decision.bundle_revision
    if decided.approval is not None:
        event["approval_id"] = decided.approval.id
    return event


def result_digest(result: Any, log: AuditLog) -> str | None:
    """Return the keyed digest of a result; None for one that is not JSON."""
    try:
        check_json(result)
        return log.digest(canonical(result))
    except JsonValueError:
        # A result that is not JSON has no digest, and that is not the tool's fault.
        return None
