"""The rules by which a person may decide on an approval, and the error for a step that a rule forbids.

A grant needs an authenticated person with one of the approvers' roles, who is neither a requester nor an agent. Each
grant of a quorum must be from a different person. If the approvers include `$subject`, the person whose agent made the
call may also grant, with another token.
"""

import time
from enum import StrEnum
from typing import Any, Self

from pdp.audit.chain import recordable
from pdp.clock import is_time, to_seconds
from pdp.errors import PdpError, UsageError
from pdp.manifest.fields import SUBJECT, normal_duration
from pdp.session import LONGEST_TEXT, Person, is_plain_name
from pdp.stores.approvals import Approval, TokenMarks, are_two_tokens, token_marks


class Refusal(StrEnum):
    """The rule by which a step of an approval is rejected. `message` is a template with facts of the approval."""

    message: str

    def __new__(cls, name: str, message: str) -> Self:
        """Return the enum member with this name and message."""
        refusal = str.__new__(cls, name)
        refusal._value_, refusal.message = name, message
        return refusal

    UNKNOWN = "unknown", "no approval has that id"
    NOT_PENDING = "not_pending", "it is {approval.state}"
    NOT_YET_OPEN = "not_yet_open", "the approval opens at {approval.opened_at} and cannot be decided earlier"
    EXPIRED = "expired", "the approval expired at {approval.expires_at}"
    CONSUMED = "consumed", "the approval was used at {approval.closed_at}"
    NO_SUBJECT = (
        "no_subject",
        (
            "the claims name no person: sub must be a non-empty string in plain characters (one script, NFC, no blanks "
            "at its ends), and iss such a string or absent"
        ),
    )
    AGENT = "agent", "the claims belong to an acting agent, but a person must approve"
    REQUESTER = "requester", "the requester of a call cannot decide on its approval"
    SAME_TOKEN = (
        "same_token",
        (
            "the call used this token or client: approve with another token (jti, azp, client_id or sid must "
            "differ from the call's, and the client must not be the agent)"
        ),
    )
    NOT_AN_APPROVER = "not_an_approver", "the claims have none of the roles that can approve the call: {approvers}"
    NOT_A_REQUESTER = "not_a_requester", "only a requester can withdraw the approval"
    ALREADY_GRANTED = (
        "already_granted",
        "the same person has already granted the approval, but {approval.quorum} people are needed",
    )
    REACH = (
        "reach",
        "it cannot reach that far: `approval.lasting` of the tool's entry allows {reaches}",
    )
    TASK_SEEN = "task_seen", "a person has already granted the approval, so its task cannot change"


class ApprovalRefusedError(PdpError):
    """A rule (`reason`, see `Refusal`) does not allow a step of an approval, which stays unchanged."""

    code = "approvals.refused"

    def __init__(self, approval_id: str, reason: Refusal, approval: Approval | None = None) -> None:
        self.reason, self.error_code = reason, f"approvals.{reason}"
        approvers = ", ".join(approval.approvers if approval is not None else ()) or "none"
        offer = approval.lasting if approval is not None else None
        longest = normal_duration(f"PT{offer.seconds}S") if offer is not None else ""
        reaches = f"{', '.join(offer.reaches)}, at most {longest}" if offer is not None else "no lasting grant"
        message = reason.message.format(approval=approval, approvers=approvers, reaches=reaches)
        super().__init__(f"approval {recordable(approval_id)}: {message}")


def time_or_now(at: str | None) -> str:
    """Return `at`, or the current time for None. Raise `UsageError` if `at` is not a time."""
    if at is None:
        return to_seconds(time.time())
    if not isinstance(at, str) or not is_time(at):
        raise UsageError(f"{at!r:.60} is not a time", hint="write a time such as 2026-07-01T10:00:00Z")
    return at


def person_of(approval: Approval, claims: Any) -> Person:
    """Return the person in the claims. Raise `ApprovalRefusedError` if the claims name no person."""
    person = named_person(claims)
    if person is None:
        raise ApprovalRefusedError(approval.id, Refusal.NO_SUBJECT, approval)
    return person


def named_person(claims: Any) -> Person | None:
    """Return the person in the claims, or None if the claims name no person."""
    claims = claims if isinstance(claims, dict) else {}
    person = Person(claims.get("iss"), claims.get("sub", ""))
    is_named = _is_name(person.sub) and (person.iss is None or _is_name(person.iss))
    return person if is_named else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and is_plain_name(value)


def approver_of(approval: Approval, claims: Any, now: str) -> tuple[Person, tuple[str, ...], TokenMarks]:
    """Return the person in the claims, the roles by which they may decide and, for the subject, the token's digests."""
    if now < approval.opened_at:
        raise ApprovalRefusedError(approval.id, Refusal.NOT_YET_OPEN, approval)
    person = person_of(approval, claims)
    if claims.get("act") is not None:
        raise ApprovalRefusedError(approval.id, Refusal.AGENT, approval)
    subject, *agents = approval.requesters
    marks = token_marks(claims)
    by_agents, by_person = (token_marks(*({"azp": each.sub} for each in people)) for people in (agents, [person]))
    is_same = (
        _have_same("token", marks, approval.token)
        or _have_same("client", marks, by_agents)
        or _have_same("client", by_person, approval.token)
    )
    if any(person.may_be(agent) for agent in agents):
        raise ApprovalRefusedError(approval.id, Refusal.REQUESTER, approval)
    if person.may_be(subject):
        # The person may be the subject under a slightly different name. Only a person with exactly the subject's name
        # may approve as the subject.
        if SUBJECT not in approval.approvers or person != subject:
            raise ApprovalRefusedError(approval.id, Refusal.REQUESTER, approval)
        if is_same or not are_two_tokens(marks, approval.token):
            raise ApprovalRefusedError(approval.id, Refusal.SAME_TOKEN, approval)
        return person, (SUBJECT,), marks
    roles_claim = claims.get("roles")
    # Only a list of texts counts, because iterating over a single text would make each character a role.
    if not isinstance(roles_claim, list) or not all(isinstance(role, str) for role in roles_claim):
        roles_claim = []
    roles = tuple(sorted(set(roles_claim) & set(approval.approvers) - {SUBJECT}))
    if not roles:
        raise ApprovalRefusedError(approval.id, Refusal.NOT_AN_APPROVER, approval)
    if is_same:
        raise ApprovalRefusedError(approval.id, Refusal.SAME_TOKEN, approval)
    return person, roles, {}


def may_decide(approval: Approval, claims: Any, now: str) -> bool:
    """Return whether the person in the claims may grant or deny the approval at `now`, and has not granted it yet."""
    try:
        person, *_ = approver_of(approval, claims, now)
    except ApprovalRefusedError:
        return False
    return not any(person.may_be(grant.person) for grant in approval.grants)


def _have_same(kind: str, first: TokenMarks, second: TokenMarks) -> bool:
    return not {*first.get(kind, ())}.isdisjoint(second.get(kind, ()))
