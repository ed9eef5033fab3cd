"""Decisions before any call: which tools a session's model may see, and whether a whole plan is acceptable.

Source: tool registry document (the model sees only tools that it could use) and tool layer document, definitions.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pdp.audit.chain import AuditEvent, AuditLog, recordable
from pdp.clock import to_seconds
from pdp.contract.compiled import CompiledManifest, CompiledTool
from pdp.contract.invariants import respelt
from pdp.contract.plan import CheckedPlan, validate_plan
from pdp.contract.request import call_digest
from pdp.decision import Decision, Reason, Verdict, denied, new_id
from pdp.engine.protocol import PLAN, REQUEST_INVALID
from pdp.errors import AuditError
from pdp.flow.drive import Question, Step
from pdp.flow.parts import Parts
from pdp.flow.record import call_event, decision_event, recorded_reason, write_event
from pdp.flow.stages import Ended, Received, Unread
from pdp.json import JsonValueError, canonical
from pdp.manifest.expressions.path import MISSING, Expression, ExpressionError
from pdp.proposal import Status
from pdp.request import Entity, Request, bounded
from pdp.session import Session

_log = logging.getLogger("pdp.pep")


class Visibility(StrEnum):
    """Whether a subject can call a tool: always (ALLOW), never (NEVER), or only with some arguments (DEPENDS)."""

    ALLOW = "ALLOW"
    NEVER = "NEVER"
    DEPENDS = "DEPENDS"


# The baseline's reason codes that do not depend on the arguments, but only on subject, purpose, run and manifest entry.
_WHATEVER_THE_ARGUMENTS: Final = frozenset((
    "delegation.exceeds_agent", "effects.pattern_mismatch", "effects.unknown", "flow.unknown", "manifest.mismatch",
    "manifest.not_pinned", "manifest.not_released", "manifest.unknown_action", "purposes.missing",
    "purposes.not_allowed", "scopes.missing",
))  # fmt: skip

# A preview does not read the run's labels, but assumes the most restrictive ones.
_ANY_RUN: Final = {
    "tainted": True, "untrusted": [], "markings": [], "plan": [], "anchored": False, "intended": False,
    "arguments": [],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preview:
    """The answer about calls of a tool whose arguments are not known.

    `decision` is about a call without arguments. `depends_on` names the arguments that the entry's rules read, and the
    limits that count calls.
    """

    visibility: Visibility
    decision: Decision
    depends_on: frozenset[str] = frozenset()

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of a decision that is no ALLOW; for a tool that is never visible, those that say why, if any."""
        if self.decision.verdict is Verdict.ALLOW:
            return ()
        never = tuple(each for each in self.decision.reasons if each.code in _WHATEVER_THE_ARGUMENTS)
        return never if never and self.visibility is Visibility.NEVER else self.decision.reasons


def visible(session: Session, manifest: CompiledManifest, now: float) -> Generator[Step, Any, dict[str, Visibility]]:
    """Return whether the session's subject can call each tool, in the order of the manifest.

    ALLOW means that the baseline policies allow the tool without reading its arguments. Policies that you add may still
    deny a call because of its arguments. If a decision fails, the tool is NEVER.
    """
    seen = yield from previews(session, session.subject, manifest, manifest.manifest.tools, now)
    return {name: preview.visibility for name, preview in seen.items()}


def previews(
    session: Session, subject: Entity, manifest: CompiledManifest, names: Iterable[str], now: float
) -> Generator[Step, Any, dict[str, Preview]]:
    """Return the previews of the tools with these names for a subject, which may differ from the session's."""
    seen: dict[str, Preview] = {}
    for tool in filter(None, map(manifest.tool, names)):
        name = tool.entry.name
        try:
            body = bounded(canonical(_probe(tool, session, now)._replace(subject=subject).as_json()))
        except JsonValueError as error:
            seen[name] = Preview(Visibility.NEVER, denied(REQUEST_INVALID, str(error)))
            continue
        decision: Decision = yield Question(body)
        reads = _arguments_of(tool)
        seen[name] = Preview(_visibility(decision, reads), decision, reads)
        if any(code.startswith("engine.") for code in decision.codes):
            # The engine has failed, so asking about the other tools would only cause more time-outs.
            return dict.fromkeys(names, Preview(Visibility.NEVER, decision)) | seen
    return seen


def _visibility(decision: Decision, reads: frozenset[str]) -> Visibility:
    if decision.verdict is Verdict.ALLOW and not reads:
        return Visibility.ALLOW
    # If the engine itself failed, the denial does not depend on the arguments.
    for_any_arguments = decision.bundle_revision is None or not _WHATEVER_THE_ARGUMENTS.isdisjoint(decision.codes)
    return Visibility.NEVER if decision.verdict is Verdict.DENY and for_any_arguments else Visibility.DEPENDS


def _arguments_of(tool: CompiledTool) -> frozenset[str]:
    entry = tool.entry
    paths = (path for mapping in (*tool.resource.values(), *tool.context.values()) for path in mapping.paths)
    mapped = (str(next(iter(path.steps), path.variable)) for path in paths if path.variable == "arguments")
    limited = (limit.argument or limit.limit for limit in entry.limits)
    return frozenset((*mapped, *limited, *entry.provenance.required, *(entry.roles or ())))


def _probe(tool: CompiledTool, session: Session, now: float) -> Request:
    """Return the request for a hypothetical call of the tool, whose arguments are not known."""
    resource = _known(tool.resource, session)
    kind, name = resource.pop("type", "tool"), resource.pop("id", tool.entry.name)
    context = _known(tool.context, session) | {
        "arguments": {},
        "purpose": session.purpose,
        "idempotency_key": session.idempotency_key or "unknown",
        "run_id": session.run_id,
    }
    if session.agent is not None:
        context["agent"] = session.agent
    if tool.entry.flow is not None and session.run_id:
        context["flow"] = _ANY_RUN
    request = Request(session.subject, tool.requested_action, Entity(str(kind), str(name), resource), context)
    context |= {"call_digest": call_digest(request), "time": session.time or to_seconds(now), "approval": None}
    context["request_id"] = session.request_id or "visibility"
    return request


def _known(mapping: Mapping[str, Expression], session: Session) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for field, expression in mapping.items():
        try:
            value = expression.evaluate({"arguments": {}, "session": session.variables})
        except ExpressionError:
            continue
        if value is not MISSING:
            known[field] = value
    return known


@dataclass(frozen=True, slots=True)
class PlanEvaluation:
    """The result of evaluating a plan: its checked steps, and the planning policy's decision on the accepted steps."""

    checked: CheckedPlan
    decision: Decision

    @property
    def acceptable(self) -> bool:
        """Whether the checks accepted every step and the policy allows the plan."""
        return self.checked.valid and self.decision.verdict == "ALLOW"

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The accepted steps. Pass these steps as `plan` in the session of the plan's calls. See `CheckedPlan.plan`."""
        return self.checked.plan


def evaluate_plan(
    steps: Sequence[Any], session: Session, received: Received, parts: Parts
) -> Generator[Step, Any, PlanEvaluation]:
    """Check a plan's steps, decide on the accepted steps, and record steps and decision. Raises as `validate_plan`."""
    checked = validate_plan(steps, session, parts.manifest, parts.tools.filled)
    try:
        going_on = [respelt(step) for step in checked.plan]
        body = bounded(canonical({"steps": going_on, "context": {"purpose": session.purpose}}))
        decision: Decision = yield Question(body, PLAN)
    except JsonValueError as error:
        decision = denied(REQUEST_INVALID, str(error))
    asked = Unread(received, session, session.request_id or new_id())
    return PlanEvaluation(checked, (yield from _record_plan(checked, decision, asked, parts.audit)))


def _record_plan(plan: CheckedPlan, decision: Decision, asked: Unread, log: AuditLog) -> Generator[Step, Any, Decision]:
    """Record the steps of a plan and the decision on the plan. Return the decision, or a DENY if recording fails."""
    try:
        for event in _plan_events(plan, decision, asked, log):
            yield from write_event(event, log)
    except Exception as error:  # noqa: BLE001 - a plan that is not recorded is not accepted
        _log.exception("could not record a plan, so the plan is denied")
        return denied(AuditError.code, str(error) if isinstance(error, AuditError) else "audit failed")
    return decision


def _plan_events(plan: CheckedPlan, decision: Decision, asked: Unread, log: AuditLog) -> Iterator[AuditEvent]:
    now = asked.received.now
    for step in plan.steps:
        received = asked.received._replace(step_name=recordable(step.name))
        planned = Ended(asked._replace(received=received), step.checked)
        event = call_event(planned, log, "planned", now)
        event["status"], event["outcome"] = step.status, "not_executed"
        if step.rejection is not None:
            event["rejection"], event["reason"] = step.rejection.code, recorded_reason(planned, step.rejection.reason)
        yield event
    decided = Ended(asked, decision=decision)
    event = decision_event(decided, log)
    event["type"], event["arguments_digest"] = "plan.decided", log.digest(canonical(plan.plan))
    if not plan.valid:
        event["status"] = Status.REJECTED
    yield event
