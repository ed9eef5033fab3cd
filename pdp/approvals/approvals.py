"""The rules of approvals: who may approve a call, and that an approval is used once.

A grant needs an authenticated person with one of the approvers' roles, who is neither a requester nor an agent;
different people up to the quorum; a pending approval whose time is not over. Where the approvers name `$subject`, the
person whose own agent asks may grant as well, by another token. Each step is one compare-and-swap in a store. Its event
is written first: a step that cannot be recorded does not happen. The action of the call follows.

Source: tool pattern library, patterns 6 and 7: an approval is a decision on a staged action.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from pdp.audit.chain import AuditEvent, AuditLog, MemoryAudit, recordable
from pdp.clock import is_time, to_milliseconds, to_seconds
from pdp.errors import AuditError, PdpError, StoreError, StoreFullError, UsageError
from pdp.json import canonical, thawed
from pdp.manifest.fields import SUBJECT
from pdp.manifest.model import Tool
from pdp.session import LONGEST_TEXT, Person, is_plain_name
from pdp.stores.actions import Action, ActionState, ActionStore
from pdp.stores.approvals import (
    Approval,
    ApprovalState,
    ApprovalStore,
    Grant,
    TokenMarks,
    Transaction,
    are_two_tokens,
    token_marks,
)
from pdp.stores.memory import MemoryApprovals

Result = TypeVar("Result")

_log = logging.getLogger("pdp.approvals")

MOST_OF_A_RUN: Final = 100  # pending approvals of one subject in one run, or in calls without a run
MOST_OF_A_SUBJECT: Final = 1_000  # and in all
TURN_SECONDS: Final = 10.0  # how long one step waits for the steps of other threads, before it fails

_OPEN: Final = frozenset((ApprovalState.PENDING, ApprovalState.GRANTED))
_ACTION_STATES: Final = {
    ApprovalState.GRANTED: ActionState.APPROVED,
    ApprovalState.DENIED: ActionState.DENIED,
    # Nobody may commit it any more; the same call again stages another action.
    ApprovalState.WITHDRAWN: ActionState.DENIED,
}


class Refusal(StrEnum):
    """Why a step was refused; `message` says it with facts of the approval."""

    message: str

    def __new__(cls, name: str, message: str) -> Self:
        """Return the refusal of this name."""
        refusal = str.__new__(cls, name)
        refusal._value_, refusal.message = name, message
        return refusal

    UNKNOWN = "unknown", "no approval has that id"
    NOT_PENDING = "not_pending", "it is {approval.state}"
    NOT_YET_OPEN = "not_yet_open", "it was opened at {approval.opened_at}, and nobody decides on it before"
    EXPIRED = "expired", "its time was over at {approval.expires_at}"
    CONSUMED = "consumed", "it was used at {approval.closed_at}"
    NO_SUBJECT = (
        "no_subject",
        (
            "the claims name nobody: sub has to be a non-empty string in plain letters (of one script, NFC, no blanks "
            "at its ends), and iss one or absent"
        ),
    )
    AGENT = "agent", "the claims are those of an acting agent, and a person approves"
    REQUESTER = "requester", "nobody decides on a call that is their own, or made for them"
    SAME_TOKEN = (
        "same_token",
        (
            "it was asked for with this token or client: approve with another one (jti, azp, client_id or sid has to "
            "differ from the call's, and the client must not be the agent)"
        ),
    )
    NOT_AN_APPROVER = "not_an_approver", "the claims have none of the roles that approve it: {approvers}"
    NOT_A_REQUESTER = "not_a_requester", "only who asked for it withdraws it"
    ALREADY_GRANTED = (
        "already_granted",
        "the same person has granted it before, and {approval.quorum} people are needed",
    )
    TASK_SEEN = "task_seen", "somebody has granted it by its task as it was, which stays"


_CLOSED: Final = {ApprovalState.CONSUMED: Refusal.CONSUMED, ApprovalState.EXPIRED: Refusal.EXPIRED}


class ApprovalRefusedError(PdpError):
    """A step that the rules do not admit. `reason` is the rule; nothing has changed."""

    code = "approvals.refused"

    def __init__(self, approval_id: str, reason: Refusal, approval: Approval | None = None) -> None:
        self.reason = reason
        approvers = ", ".join(approval.approvers if approval is not None else ()) or "nobody"
        message = reason.message.format(approval=approval, approvers=approvers)
        super().__init__(f"approval {recordable(approval_id)}: {message}")


class Approvals:
    """The rules over a store, in memory when absent. Safe to share between threads, and between enforcement points.

    Every step takes claims that were verified before, and `at`, a time such as `2026-07-01T10:00:00Z` (the clock's when
    absent). Its events go to `audit`; when absent, to the stream of the first enforcement point that it is given to.

    `ids` gives the id of one that is opened, each another one; by itself, ids are unguessable.
    """

    def __init__(
        self,
        store: ApprovalStore | None = None,
        audit: AuditLog | None = None,
        *,
        ids: Callable[[], str] | None = None,
    ) -> None:
        self.store: ApprovalStore = MemoryApprovals() if store is None else store
        self.audit = audit
        self.actions: ActionStore | None = None
        self._ids = ids
        self._lock = threading.RLock()

    def attach(self, audit: AuditLog, actions: ActionStore) -> None:
        """Send events to this stream and move the actions of approvals in this store, where there is none yet."""
        self.audit = audit if self.audit is None else self.audit
        self.actions = actions if self.actions is None else self.actions

    def recorded_in(self, audit: AuditLog) -> Approvals:
        """Return the same approvals for another enforcement point, whose steps on them go to its own stream."""
        other = copy(self)
        other.audit = audit
        return other

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold check, event and swap together, so that in one process no event says what then did not happen."""
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise StoreError(f"approvals: another thread has held them for {TURN_SECONDS:g} s")
        try:
            yield
        finally:
            self._lock.release()

    @property
    def blocking(self) -> bool:
        """Whether a step waits for a disk or a network, or may wait for the audit."""
        return self.store.blocking or (self.audit is not None and self.audit.may_wait)

    def open(
        self,
        body: bytes,
        entry: Tool,
        reasons: Sequence[str],
        stage: Callable[[], Action | None] = lambda: None,
        decision_id: str | None = None,
        *,
        claims: Mapping[str, Any] | None = None,
        proposer: Mapping[str, Any] | None = None,
    ) -> Approval:
        """Return the pending approval of a call (as of `Approval.asked`), opened now if there is none.

        `stage` returns the action that the approval is for, where the call has effects; asked when one is opened. It
        may take a while, and is asked again when another call has opened one meanwhile. AuditError: that it is opened
        could not be recorded, so it is not; StoreFullError: too many of the subject are pending, in this run or in all.
        """
        new = Approval.asked(body, entry, reasons, decision_id, claims=claims, proposer=proposer)
        while True:
            self._in_time(self.store.list(call_digest=new.call_digest, state=ApprovalState.PENDING), new.opened_at)
            # Lists of our own: whatever sequence a store returns may have no equality.
            stored = [*self.store.list(call_digest=new.call_digest)]
            pending = next((approval for approval in stored if approval.state is ApprovalState.PENDING), None)
            if pending is not None:
                return pending
            self._check_room(new)
            # Staging may read the application's sources: not under the lock, which every other step waits for.
            action = stage()
            opened = replace(new, id=self._ids() if self._ids else new.id, action_id=action.id if action else None)
            with self._turn():
                if [*self.store.list(call_digest=new.call_digest)] != stored:
                    continue
                # Once more: of calls at once, others may have taken the room.
                self._check_room(new)
                if self._swapped("opened", None, opened, new.subject):
                    return opened

    def request(self, approval_id: str, task: dict[str, Any], at: str) -> Approval:
        """Note on a pending approval what those who decide are told (`Approval.task`). Raises as `grant`.

        Whoever proposes writes it. So it stays what it was from the first grant on.
        """

        def requested(old: Approval) -> tuple[Approval, str]:
            if old.state is not ApprovalState.PENDING:
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            if old.grants and old.task != task:
                raise ApprovalRefusedError(old.id, Refusal.TASK_SEEN, old)
            return replace(old, task=thawed(task)), old.subject

        return self._step("requested", approval_id, at, requested)

    def grant(self, approval_id: str, claims: Any, at: str | None = None) -> Approval:
        """Count one person's approval and return the record; with the last one of the quorum it is granted.

        ApprovalRefusedError: see `Refusal`; AuditError: it could not be recorded, so it does not count; UsageError:
        `at` is not a time.
        """
        now = _now(at)

        def granted(old: Approval) -> tuple[Approval, str]:
            if old.state is not ApprovalState.PENDING:
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            person, roles, token = _approver(old, claims, now)
            if any(person.may_be(grant.person) for grant in old.grants):
                raise ApprovalRefusedError(old.id, Refusal.ALREADY_GRANTED, old)
            grants = (*old.grants, Grant(person.iss, person.sub, roles, now, token))
            state = ApprovalState.GRANTED if len(grants) >= old.quorum else ApprovalState.PENDING
            return replace(old, grants=grants, state=state), person.sub

        return self._with_action(self._step("granted", approval_id, now, granted))

    def deny(self, approval_id: str, claims: Any, at: str | None = None, why: str | None = None) -> Approval:
        """Deny it: one approver is enough, as long as it was not used. Raises as `grant`."""
        now, reason = _now(at), recordable(why)

        def denied(old: Approval) -> tuple[Approval, str]:
            person, *_ = _approver(old, claims, now)
            new = replace(old, state=ApprovalState.DENIED, closed_at=now, closed_by=person, why=reason)
            return new, person.sub

        return self._with_action(self._step("denied", approval_id, now, denied))

    def withdraw(self, approval_id: str, claims: Any, at: str | None = None) -> Approval:
        """Take it back: whoever asked for it may, as long as it was not used. Raises as `grant`."""
        now = _now(at)

        def withdrawn(old: Approval) -> tuple[Approval, str]:
            person = _person(old, claims)
            if not any(person.may_be(requester) for requester in old.requesters):
                raise ApprovalRefusedError(old.id, Refusal.NOT_A_REQUESTER, old)
            return replace(old, state=ApprovalState.WITHDRAWN, closed_at=now, closed_by=person), person.sub

        return self._with_action(self._step("withdrawn", approval_id, now, withdrawn))

    def usable(
        self,
        call_digest: str,
        now: str,
        claims: Mapping[str, Any] | None = None,
        proposer: Mapping[str, Any] | None = None,
    ) -> Approval | None:
        """Return the newest approval that lets exactly this call through at `now`; claims as of `Approval.is_for`."""
        granted = reversed(self._in_time(self.store.list(call_digest=call_digest, state=ApprovalState.GRANTED), now))
        tokens = claims or {}, proposer or {}
        return next((approval for approval in granted if approval.usable(now) and approval.is_for(*tokens)), None)

    def consume(self, approval: Approval, now: str, *, within: Transaction | None = None) -> Approval:
        """Use it up, in the transaction `within` where a store can. Of all that try, in any process, one gets through.

        ApprovalRefusedError: it was used, denied or withdrawn meanwhile, or its time is over; AuditError: it could not
        be recorded, so it is not used.
        """

        def consumed(old: Approval) -> tuple[Approval, str]:
            if old != approval or not old.usable(now):
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            return replace(old, state=ApprovalState.CONSUMED, closed_at=now), old.subject

        return self._step("consumed", approval.id, now, consumed, within)

    def consume_with(
        self, approval: Approval, now: str, step: Callable[[Callable[[Transaction | None], object]], Result]
    ) -> tuple[Result, Approval]:
        """Use it up as a part of `step`, and return the result of the step and the record as it is then.

        The step gets what uses it up within a transaction of the step, and need not call it. If it fails after that,
        nobody knows whether the approval was used, and that is recorded. The step raises as `consume`.
        """
        used = approval

        def consume(transaction: Transaction | None) -> None:
            nonlocal used
            used = self.consume(approval, now, within=transaction)

        # The approvals are held before the step's transaction, as by whoever takes a step on them: otherwise each could
        # hold what the other waits for.
        with self._turn():
            if approval.state in _OPEN:
                self._in_time([approval], now)  # marked by itself: the step's transaction is rolled back then
            try:
                result = step(consume)
            except Exception:
                if used is not approval:
                    self._record_doubt(used)
                raise
        return result, used

    def _record_doubt(self, used: Approval) -> None:
        log = self._log()
        try:
            log.append({**_event("consumed", used, used.subject, log), "outcome": "unknown"})
        except AuditError:
            _log.exception("that approval %s may not have been consumed could not be recorded", used.id)

    def get(self, approval_id: str) -> Approval:
        """Return the approval of that id; ApprovalRefusedError `unknown` where there is none."""
        approval = self.store.get(approval_id) if isinstance(approval_id, str) else None
        if approval is None:
            raise ApprovalRefusedError(str(approval_id), Refusal.UNKNOWN)
        return approval

    def list(self, *, state: ApprovalState | None = None) -> Sequence[Approval]:
        """Return the approvals in the order of being opened. One whose time is over may still say pending."""
        return self.store.list(state=state)

    def sweep(self, at: str | None = None) -> None:
        """Mark those whose time is over as expired. StoreError: the store cannot be used."""
        for state in _OPEN:
            self._in_time(self.store.list(state=state), _now(at))

    def _with_action(self, approval: Approval) -> Approval:
        """Approve or deny the action of an approval that was granted, or denied or withdrawn; return the approval.

        An action that cannot be moved is logged: it lets nothing through, as a commit asks for the approval.
        """
        state = _ACTION_STATES.get(approval.state)
        if self.actions is None or state is None or approval.action_id is None:
            return approval
        try:
            action = self.actions.get(approval.action_id)
            if action is not None and action.state is not state:
                self.actions.move(action, state, approval_id=approval.id if state is ActionState.APPROVED else None)
        except PdpError:
            _log.exception("the action of approval %s does not follow it", approval.id)
        return approval

    def _step(
        self,
        step: str,
        approval_id: str,
        now: str,
        change: Callable[[Approval], tuple[Approval, str]],
        within: Transaction | None = None,
    ) -> Approval:
        """Take a step on an approval that is open; `change` returns the new record and who makes the step."""
        with self._turn():
            while True:
                old = self.get(approval_id)
                # Within a transaction nothing is marked: `consume_with` has marked it before.
                if old.state in _OPEN and (old.expired(now) if within is not None else not self._in_time([old], now)):
                    old = replace(old, state=ApprovalState.EXPIRED)
                if old.state not in _OPEN:
                    raise ApprovalRefusedError(old.id, _CLOSED.get(old.state, Refusal.NOT_PENDING), old)
                new, who = change(old)
                if self._swapped(step, old, new, who, within):
                    return new

    def _in_time(self, approvals: Sequence[Approval], now: str) -> Sequence[Approval]:
        """Return those whose time is not over, and mark the others: a clock that goes back revives none of them."""
        for approval in approvals:
            if approval.expired(now):
                self._expire(approval)
        return [approval for approval in approvals if not approval.expired(now)]

    def _expire(self, approval: Approval) -> None:
        try:
            with self._turn():
                self._swapped("expired", approval, replace(approval, state=ApprovalState.EXPIRED), approval.subject)
        except AuditError:
            # It counts as expired all the same, and is marked when it can be recorded.
            _log.exception("that approval %s has expired could not be recorded", approval.id)

    def _check_room(self, new: Approval) -> None:
        pending = self._in_time(self.store.list(state=ApprovalState.PENDING, subject=new.subject), new.opened_at)
        in_run = sum(approval.run_id == new.run_id for approval in pending)
        if in_run >= MOST_OF_A_RUN or len(pending) >= MOST_OF_A_SUBJECT:
            raise StoreFullError(
                f"{in_run} approvals of this run are pending, and {len(pending)} of its subject",
                hint="decide on them, or withdraw what is not needed",
            )

    def _log(self) -> AuditLog:
        if self.audit is None:
            self.audit = MemoryAudit()
        return self.audit

    def _swapped(
        self, step: str, old: Approval | None, new: Approval, who: str, within: Transaction | None = None
    ) -> bool:
        """Record that `who` makes a step, and make it; where it is not made after all, record that as well."""
        log = self._log()
        event = _event(step, new, who, log)
        log.append_within(event, within)
        try:
            done = self.store.add(new) == new if old is None else self.store.replace(old, new, within=within)
        except Exception:
            log.append_within({**event, "outcome": "unknown"}, within)
            raise
        if not done:
            log.append_within({**event, "outcome": "failed"}, within)
        return done


def _now(at: str | None) -> str:
    if at is None:
        return to_seconds(time.time())
    if not isinstance(at, str) or not is_time(at):
        raise UsageError(f"{at!r:.60} is not a time", hint="write it as 2026-07-01T10:00:00Z")
    return at


def _person(approval: Approval, claims: Any) -> Person:
    named = claims if isinstance(claims, dict) else {}
    person = Person(named.get("iss"), named.get("sub", ""))
    if not _is_name(person.sub) or (person.iss is not None and not _is_name(person.iss)):
        raise ApprovalRefusedError(approval.id, Refusal.NO_SUBJECT, approval)
    return person


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and is_plain_name(value)


def _approver(approval: Approval, claims: Any, now: str) -> tuple[Person, tuple[str, ...], TokenMarks]:
    """Return who decides, by which of the approvers' roles, and, of the subject, by which token."""
    if now < approval.opened_at:
        raise ApprovalRefusedError(approval.id, Refusal.NOT_YET_OPEN, approval)
    person = _person(approval, claims)
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
        # Two spellings may be one person, who is kept out; only one spelling is certainly this person, who is let in.
        if SUBJECT not in approval.approvers or person != subject:
            raise ApprovalRefusedError(approval.id, Refusal.REQUESTER, approval)
        if is_same or not are_two_tokens(marks, approval.token):
            raise ApprovalRefusedError(approval.id, Refusal.SAME_TOKEN, approval)
        return person, (SUBJECT,), marks
    held = claims.get("roles")
    # A list of texts, whole: of a single text, each letter would be a role.
    if not isinstance(held, list) or not all(isinstance(role, str) for role in held):
        held = []
    roles = tuple(sorted(set(held) & set(approval.approvers) - {SUBJECT}))
    if not roles:
        raise ApprovalRefusedError(approval.id, Refusal.NOT_AN_APPROVER, approval)
    if is_same:
        raise ApprovalRefusedError(approval.id, Refusal.SAME_TOKEN, approval)
    return person, roles, {}


def _have_same(kind: str, first: TokenMarks, second: TokenMarks) -> bool:
    return not {*first.get(kind, ())}.isdisjoint(second.get(kind, ()))


def _event(step: str, approval: Approval, who: str, log: AuditLog) -> AuditEvent:
    request = approval.request
    return {
        "time": to_milliseconds(time.time()),
        "type": f"approval.{step}",
        "request_id": recordable(request["context"]["request_id"]),
        "run_id": recordable(approval.run_id),
        "subject": recordable(who),
        # A person grants and denies; all else is done for the requester.
        "agent": None if step in ("granted", "denied") else recordable(approval.agent),
        "tool_name": approval.tool,
        "manifest_version": request["action"]["properties"]["manifest_version"],
        "manifest_digest": approval.manifest_digest,
        "arguments_digest": log.digest(canonical(request["context"]["arguments"])),
        "status": approval.state,
        "codes": approval.reasons,
        "decision_id": approval.decision_id,
        "approval_id": approval.id,
        "idempotency_key": recordable(approval.idempotency_key),
    }
