"""The two audit events of a call: the decision, written before the tool runs, and the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from pdp.audit.chain import AuditEvent, AuditLog, recordable
from pdp.clock import to_milliseconds
from pdp.contract.checks import Checked
from pdp.decision import Decision, Verdict
from pdp.errors import AuditError
from pdp.flow.drive import Step, Work
from pdp.flow.stages import Decided, Ended, Executed
from pdp.json import JsonValueError, canonical, check_json
from pdp.proposal import Status
from pdp.request import Request

_log = logging.getLogger("pdp.pep")

T = TypeVar("T", Decided, Ended, Decided | Ended)

# The maximum number of source digests in the event of one call. `arguments_digest` covers all sources.
_MAX_SOURCES: Final = 1_000


def record_decision(decided: T, log: AuditLog, *, superseded: bool = False) -> Generator[Step, Any, T]:
    """Record and return a decision, or a DENY if recording fails. `superseded`: the policy replaced the proposal."""
    try:
        event = decision_event(decided, log, superseded=superseded)
        if log.seal is not None and isinstance(decided, Decided):
            event = log.seal(event, decided.prepared.body, decided.answer or decided.decision)
        yield from write_event(event, log)
    except Exception as error:  # noqa: BLE001 - the call is denied instead
        _log.exception("could not write an audit event, so the call is denied")
        return decided.denied(AuditError.code, str(error) if isinstance(error, AuditError) else "audit failed")
    return decided


def record_result(executed: Executed, log: AuditLog) -> Generator[Step, Any, Executed]:
    """Record the outcome of a call. If recording fails and the tool ran, the caller gets an unknown outcome."""
    try:
        yield from write_result(executed, log)
    except Exception:  # noqa: BLE001 - reported as an unknown outcome instead
        from pdp.execution.runner import unknown  # noqa: PLC0415 - only if recording fails

        _log.critical("the result of an allowed call could not be recorded", exc_info=True)
        if executed.execution.failure is not None and not executed.execution.started:
            return executed
        unrecorded = unknown("the tool ran, but its result could not be recorded")
        return Executed(executed.decided, unrecorded, executed.action)
    return executed


def write_result(executed: Executed, log: AuditLog) -> Generator[Step, Any, None]:
    """Record the outcome of a call. Raise `AuditError` if that fails."""
    yield from write_event(result_event(executed, log), log)


def write_event(event: AuditEvent, log: AuditLog) -> Generator[Step, Any, None]:
    """Append an event to the audit stream, and wait until it is written."""
    waiting = log.offer(event)
    if isinstance(waiting, Future):
        yield Work(waiting.result, blocking=True, future=waiting)
    elif waiting is not None:
        yield Work(waiting, blocking=True)


def log_decision(decided: Decided, level: int) -> None:
    """Log the decision at the level that the obligation `log_level` sets. Arguments are not logged."""
    decision, name = decided.decision, decided.tool.entry.name
    codes = ", ".join(decision.codes)
    _log.log(level, "%s for %s: %s (decision %s)", decision.verdict, name, codes, decision.decision_id)


def decision_event(decided: Decided | Ended, log: AuditLog, *, superseded: bool = False) -> AuditEvent:
    """Return the audit event of the decision on a proposal, or of its rejection by a check."""
    received = decided.asked.received
    event = call_event(decided, log, "dispatch", received.now)
    # Without this outcome, a call that was decided but not run would look like a call whose result was never recorded.
    executes = received.to_run and received.staged is None and not superseded and not decided.pruned
    event["outcome"] = None if executes else "not_executed"
    status = Status.TRANSFORMED if superseded else decided.status
    event["status"] = status
    if (rejection := decided.rejection) is not None:
        event["rejection"], event["reason"] = rejection.code, recorded_reason(decided, rejection.reason)
    if decided.decision is not None:
        event["verdict"] = decided.decision.verdict
        event["codes"] = decided.decision.codes
    if isinstance(decided, Decided):
        if decided.prepared.spendings:
            event["spent"] = _spent(decided.prepared.request)
        if decided.prepared.flow is not None:
            event["flow"] = _flow(decided.prepared.flow.context, decided.decision)
    return event


def _flow(context: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the labels of the run and of the arguments, and the codes in the decision's obligations `note`."""
    duties = decision.obligations
    noted = {code for duty in duties if duty.id == "note" for code in duty.parameters["codes"] if isinstance(code, str)}
    # The keys are listed in sorted order, because the audit log writes them sorted.
    return {
        "arguments": [
            {"path": recordable(argument["path"]), "role": argument["role"], "sources": argument["sources"]}
            for argument in context["arguments"]
        ],
        "markings": context["markings"],
        "noted": sorted(noted),
        "tainted": context["tainted"],
        "untrusted": context["untrusted"],
    }


def result_event(executed: Executed, log: AuditLog) -> AuditEvent:
    """Return the audit event of a call's outcome."""
    decided, execution = executed.decided, executed.execution
    event = call_event(decided, log, "result", time.time())
    event["status"] = decided.status
    event["duration_ms"] = round((time.perf_counter() - decided.asked.received.started) * 1000, 3)
    event["outcome"] = execution.outcome
    event["replayed"] = execution.replayed
    event["retrieval_snapshot"] = recordable(executed.retrieval_snapshot)
    if execution.failure is not None:
        event["error_code"] = execution.failure.code
    else:
        event["result_digest"] = result_digest(execution.result, log)
    return event


def _sources(required: Sequence[str], arguments: Mapping[str, Any], log: AuditLog) -> list[str]:
    """Return digests of the sources that the arguments name, so that an auditor can match a source to the call."""
    named = [arguments[name] for name in required]
    links = [link for value in named for link in (value if isinstance(value, list) else [value])]
    return [log.digest(canonical(link)) for link in links[:_MAX_SOURCES]]


def _spent(request: Request) -> list[dict[str, str | None]]:
    """Return, for each limit, the amount spent before this call, as the policy saw it. Numbers are written as text."""
    return [
        {"limit": entry["limit"], "used": str(entry["used"]), "window_ends": entry["window_ends"]}
        for entry in request.context["spent"]
        if "used" in entry
    ]


def call_event(decided: Decided | Ended, log: AuditLog, phase: str, now: float) -> AuditEvent:
    """Return the fields that every audit event of a call contains."""
    asked, checked, decision = decided.asked, decided.checked, decided.decision
    proposal, tool = (asked.proposal, None) if checked is None else (checked.proposal, checked.tool)
    event: AuditEvent = {
        "time": to_milliseconds(now),
        # The model may invent a tool name, so an unknown name is not used in the event type, which alerts match.
        "type": f"tool.{tool.entry.name if tool else 'unknown'}.{phase}",
        "request_id": recordable(asked.request_id),
        "tool_call_id": asked.received.tool_call_id,
        "tool_name": tool.entry.name if tool else recordable(decided.tool_name or None),
        "manifest_version": asked.received.manifest.version,
        "manifest_digest": asked.received.manifest.digest,
        "in_manifest": None if proposal is None else tool is not None,
        "step_name": asked.received.step_name,
    }
    if checked is not None:
        event["idempotency_key"] = recordable(checked.idempotency_key)
        event["idempotency_missing"] = checked.idempotency_missing
        event["schema_valid"] = checked.schema_valid
    if isinstance(checked, Checked) and (required := checked.tool.entry.provenance.required):
        event["sources"] = _sources(required, checked.proposal.arguments, log)
    if tool is not None:
        event["pdp_action"] = tool.entry.pdp_action
        event["risk_tier"] = tool.entry.risk_tier
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
    if isinstance(decided, Decided) and (grant := decided.prepared.request.context.get("grant")) is not None:
        event["grant_id"] = grant["id"]
    return event


def recorded_reason(decided: Decided | Ended, reason: str) -> str | None:
    """Return the reason for a rejection, without the values that the model proposed.

    None if a policy rejected the call, because the messages of a policy may quote any value.
    """
    decision, proposal, tool = decided.decision, decided.proposal, decided.tool
    if decision is not None and (decision.bundle_revision is not None or decision.verdict is not Verdict.DENY):
        return None
    if proposal is not None and tool is not None:
        from pdp.contract.sensitive import without_arguments  # noqa: PLC0415 - only for calls without a decision

        reason = without_arguments(reason, proposal.arguments, tool.argument_names)
    return recordable(reason)


def result_digest(result: Any, log: AuditLog) -> str | None:
    """Return the keyed digest of a tool's result; None if the result is not JSON."""
    try:
        check_json(result)
        return log.digest(canonical(result))
    except JsonValueError:
        return None
