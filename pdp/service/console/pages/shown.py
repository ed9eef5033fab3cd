"""What the page of one approval shows: why a person is asked, each argument, and what is different this time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdp.approvals.people import ApprovalRefusedError, approver_of
from pdp.approvals.sentence import act, person_text
from pdp.decision import Decision, Reason, Verdict
from pdp.json import pointer_steps
from pdp.ledger.words import explanation, origin
from pdp.manifest.fields import SUBJECT, EffectClass
from pdp.manifest.model import Tool
from pdp.service.console.texts import text
from pdp.service.console.visible import json_text
from pdp.stores.approvals import Approval, ApprovalState, Reach

_LASTING: Final = (3_600, 8 * 3_600, 24 * 3_600, 7 * 24 * 3_600, 30 * 24 * 3_600)
"""The durations that the page offers for a grant with the reach `until`, in seconds."""


@dataclass(frozen=True, slots=True)
class ShownArgument:
    """An argument of the call: its value, where the value came from, and how it differs from the last approved call.

    `origin` is None if the manifest does not track where values come from. `now` and `last` are JSON texts, or None if
    that call has no such argument.
    """

    name: str
    now: str | None
    origin: str | None = None
    suspicious: bool = False
    differs: bool = False
    last: str | None = None


@dataclass(frozen=True, slots=True)
class ShownReason:
    """A reason why a person is asked. `limit` is the limit and the proposed value, as `(name, held, value)`."""

    code: str
    message: str | None
    explanation: str | None
    remedy: str | None
    limit: tuple[str, Any, Any] | None


def list_row(approval: Approval) -> dict[str, Any]:
    """Return what a list shows of an approval."""
    return {
        "id": approval.id,
        "act": act(approval),
        "asker": person_text(approval.requesters[0]),
        "agent": approval.agent,
        "opened_at": approval.opened_at,
        "expires_at": approval.expires_at,
        "state": approval.standing,
        "closed_by": None if approval.closed_by is None else person_text(approval.closed_by),
    }


def shown_arguments(approval: Approval, last: Approval | None) -> list[ShownArgument]:
    """Return the arguments of the call, in its order, and those that only the last approved call had."""
    context = approval.request["context"]
    arguments: dict[str, Any] = context["arguments"]
    before: dict[str, Any] = arguments if last is None else last.request["context"]["arguments"]
    flow = context.get("flow")
    parts: dict[tuple[str, ...], list[Any]] = {}
    for part in flow.get("arguments") or () if isinstance(flow, Mapping) else ():
        parts.setdefault(pointer_steps(part.get("path") or "")[:1], []).append(part)
    shown = []
    for name, value in arguments.items():
        now, was = json_text(value), json_text(before[name]) if name in before else None
        source = _origin(parts.get((name,), ())) if isinstance(flow, Mapping) else (None, False)
        shown.append(ShownArgument(name, now, *source, now != was, was))
    gone = [name for name in before if name not in arguments]
    return shown + [ShownArgument(name, None, differs=True, last=json_text(before[name])) for name in gone]


def _origin(parts: Sequence[Any]) -> tuple[str | None, bool]:
    """Return where an argument's value came from. A part of the value that nobody vouches for makes it suspicious."""
    found = [origin(part) for part in (*parts, *(link for part in parts for link in part.get("links") or ()))]
    if not found:
        return text("approval.origin_unlisted"), False
    doubtful = [phrase for phrase, vouched in found if not vouched]
    return (doubtful or [phrase for phrase, _ in found])[0], bool(doubtful)


def shown_reasons(approval: Approval, decision: Decision) -> list[ShownReason]:
    """Return the reasons of the STEP_UP. Their texts are from `decision` of the policy in force, if it agrees."""
    if decision.verdict is not Verdict.STEP_UP or decision.codes != tuple(sorted(approval.reasons)):
        return [ShownReason(code, None, None, None, None) for code in approval.reasons]
    flow = approval.request["context"].get("flow") or {}
    return [
        ShownReason(
            reason.code, reason.message, explanation(reason.code, reason.details, flow), reason.remedy, _limit(reason)
        )
        for reason in decision.reasons
    ]


def _limit(reason: Reason) -> tuple[str, Any, Any] | None:
    details = reason.details
    return (
        (str(details["limit"]), details["held"], details["value"]) if {"limit", "held", "value"} <= {*details} else None
    )


def what_yes_does(approval: Approval, entry: Tool | None) -> dict[str, Any]:
    """Return what the decision bar offers: the reaches, for how long, and how many people are still needed."""
    offer = approval.lasting
    return {
        "run": offer is not None and Reach.RUN in offer.reaches and approval.run_id is not None,
        "until": [seconds for seconds in _LASTING if seconds <= offer.seconds] or [offer.seconds]
        if offer is not None and Reach.UNTIL in offer.reaches
        else [],
        "free": sorted(free_names(entry)),
        "uses": None if offer is None else offer.uses,
        "missing": max(approval.quorum - len(approval.grants), 0),
        # A tool that the manifest no longer has counts as the heaviest.
        "is_high": entry is None or entry.effect_class is EffectClass.COMMIT_HIGH,
    }


def free_names(entry: Tool | None) -> frozenset[str]:
    """Return the names of the arguments that may differ in the calls of a lasting grant."""
    lasting = None if entry is None else entry.approval.lasting
    return frozenset(pointer[1:] for pointer in lasting.free) if lasting else frozenset()


def state_of(approval: Approval, claims: dict[str, Any], now: str) -> tuple[str, str]:
    """Return the name of the text that says what the viewer can do, and the rule that keeps them from deciding."""
    standing = approval.standing
    if standing is not ApprovalState.PENDING:
        return f"approval.is_{standing}", ""
    try:
        person, *_ = approver_of(approval, claims, now)
    except ApprovalRefusedError as error:
        return "approval.waits_for_others", error.message.partition(": ")[2]
    granted = any(person.may_be(grant.person) for grant in approval.grants)
    return ("approval.you_granted" if granted else "approval.waits_for_you"), ""


def approvers_of(approval: Approval) -> list[str]:
    """Return the roles that may approve, as people read them."""
    own = text("approval.subject_role", name=person_text(approval.requesters[0]))
    return [own if role == SUBJECT else role for role in approval.approvers]
