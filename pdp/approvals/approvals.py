"""The steps of approvals: how an approval is opened, decided and used once. `people` has the rules for who may decide.

Each step is one compare-and-swap. Its audit event is written first, so a step that cannot be recorded does not happen.

Source: tool pattern library, patterns 6 and 7: an approval is a decision on a staged action.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pdp.approvals.lasting import LastingGrants, end_of, reach_of
from pdp.approvals.people import ApprovalRefusedError, Refusal, approver_of, person_of, time_or_now
from pdp.audit.chain import AuditEvent, AuditLog, MemoryAudit, recordable
from pdp.clock import to_milliseconds
from pdp.errors import AuditError, PdpError, StoreError, StoreFullError
from pdp.json import canonical, thawed
from pdp.manifest.model import Tool
from pdp.session import Person
from pdp.stores.actions import Action, ActionState, ActionStore
from pdp.stores.approvals import Approval, ApprovalState, ApprovalStore, Grant, Reach, Transaction
from pdp.stores.grants import GrantStore
from pdp.stores.memory import MemoryApprovals, MemoryGrants

Result = TypeVar("Result")

_log = logging.getLogger("pdp.approvals")

# The maximum number of pending approvals of one subject in one run. Calls without a run count as one run. One more
# approval withdraws the oldest, so that calls which a person refused elsewhere do not stop the run.
MOST_OF_A_RUN: Final = 100
MOST_OF_A_SUBJECT: Final = 1_000  # The maximum number of pending approvals of one subject in all runs.
TURN_SECONDS: Final = 10.0  # An operation on the approvals waits at most this many seconds for other threads.

_REPLACED: Final = "a newer approval of the same run took its place"
_OPEN: Final = frozenset((ApprovalState.PENDING, ApprovalState.GRANTED))
_ACTION_STATES: Final = {
    ApprovalState.GRANTED: ActionState.APPROVED,
    ApprovalState.DENIED: ActionState.DENIED,
    # A withdrawn action is marked as denied, so that it cannot be committed. A repeated call stages a new action.
    ApprovalState.WITHDRAWN: ActionState.DENIED,
}


_CLOSED: Final = {ApprovalState.CONSUMED: Refusal.CONSUMED, ApprovalState.EXPIRED: Refusal.EXPIRED}


class Approvals:
    """Opens approvals, and checks who may grant or deny them. Safe to share between threads and enforcement points.

    Methods that take `claims` need verified claims. `at` is a time such as `2026-07-01T10:00:00Z`; None means now.

    Args:
        store: where approvals are kept; by default, in memory.
        audit: records the steps; by default, the audit of the first enforcement point that uses this object.
        ids: returns a unique id for a new approval; by default, a random id.
        public_url: the address of the service whose console people use. It is the start of the approvals' `url`.

    Examples:
        >>> approvals = Approvals()
        >>> approvals.list()
        []
    """

    def __init__(
        self,
        store: ApprovalStore | None = None,
        audit: AuditLog | None = None,
        *,
        ids: Callable[[], str] | None = None,
        public_url: str | None = None,
    ) -> None:
        self.store: ApprovalStore = MemoryApprovals() if store is None else store
        self._grants: GrantStore = getattr(self.store, "lasting", None) or MemoryGrants()
        self.audit = audit
        self.actions: ActionStore | None = None
        self._ids = ids
        self._public_url = public_url
        self._lock = threading.RLock()

    def attach(self, audit: AuditLog, actions: ActionStore) -> None:
        """Set the audit stream and the store of actions, unless already set."""
        self.audit = audit if self.audit is None else self.audit
        self.actions = actions if self.actions is None else self.actions

    def recorded_in(self, audit: AuditLog) -> Approvals:
        """Return a copy that shares the approvals but records its steps in `audit`."""
        other = copy(self)
        other.audit = audit
        return other

    def url(self, approval_id: str) -> str | None:
        """Return the address of an approval's page in the console; None without `public_url`."""
        return self._public_url and f"{self._public_url.rstrip('/')}/console/approvals/{quote(approval_id, safe='')}"

    def linked(self, approval: Approval) -> Approval:
        """Return an approval of the store with its `url`."""
        return replace(approval, url=self.url(approval.id)) if self._public_url else approval

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the approvals during a step's check, event and swap, so that no event records a step that fails."""
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise StoreError(f"approvals: locked by another thread for {TURN_SECONDS:g} s")
        try:
            yield
        finally:
            self._lock.release()

    @property
    def blocking(self) -> bool:
        """Whether a step may wait for a disk, a network or the audit stream."""
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
        """Return the pending approval of a call, or open a new one (see `Approval.asked`).

        `stage` stages and returns the action of a call with effects. It may be called again if another call opens an
        approval meanwhile. If the run or its subject has too many pending approvals, this withdraws the run's oldest
        pending approval without a grant. Raises `AuditError`, and `StoreFullError` if the run has no such approval.
        """
        new = Approval.asked(body, entry, reasons, decision_id, claims=claims, proposer=proposer)
        while True:
            self._unexpired(self.store.list(call_digest=new.call_digest, state=ApprovalState.PENDING), new.opened_at)
            # The results are copied to lists because a store may return a sequence that does not compare by content.
            stored = [*self.store.list(call_digest=new.call_digest)]
            pending = next((approval for approval in stored if approval.state is ApprovalState.PENDING), None)
            if pending is not None:
                return self.linked(pending)
            self._replaceable(new)  # Raises before an action is staged.
            # Staging may read the application's sources, which can be slow, so it runs without the lock.
            action = stage()
            opened = replace(new, id=self._ids() if self._ids else new.id, action_id=action.id if action else None)
            with self._locked():
                if [*self.store.list(call_digest=new.call_digest)] != stored:
                    continue
                self._make_room(new)
                if self._swapped("opened", None, opened, new.subject):
                    # Another process may have opened an approval at the same time.
                    self._make_room(new, opened=1)
                    return self.linked(opened)

    def request(self, approval_id: str, task: dict[str, Any], at: str) -> Approval:
        """Set the task of a pending approval. The first grant makes the task final. Raises the errors of `grant`."""

        def requested(old: Approval) -> tuple[Approval, str]:
            if old.state is not ApprovalState.PENDING:
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            if old.grants and old.task != task:
                raise ApprovalRefusedError(old.id, Refusal.TASK_SEEN, old)
            return replace(old, task=thawed(task)), old.subject

        return self._step("requested", approval_id, at, requested)

    def grant(
        self,
        approval_id: str,
        claims: Any,
        at: str | None = None,
        *,
        reach: Reach | str = Reach.ONCE,
        until: str | None = None,
    ) -> Approval:
        """Record one person's grant and return the approval. The last grant of the quorum makes the approval `granted`.

        With the reach `run` or `until`, the last grant also makes a `LastingGrant` for similar calls, see `lasting`. If
        the people of a quorum choose different reaches, the shortest counts.

        Args:
            approval_id: the id of the approval.
            claims: the person's verified claims.
            at: the time of the grant; None means now.
            reach: `once` for this call only, `run` for similar calls of the run, `until` for similar calls of any run.
            until: the end of the lasting grant. The tool's entry limits it, and says how long a grant without it lasts.

        Raises:
            ApprovalRefusedError: a rule forbids the grant, see `Refusal`.
            AuditError, UsageError: the grant could not be recorded, so it does not count; or `at` is not a time.
        """
        now = time_or_now(at)
        reach = reach_of(reach)
        end = None if until is None else time_or_now(until)

        def granted(old: Approval) -> tuple[Approval, str]:
            if old.state is not ApprovalState.PENDING:
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            person, roles, token = approver_of(old, claims, now)
            if any(person.may_be(grant.person) for grant in old.grants):
                raise ApprovalRefusedError(old.id, Refusal.ALREADY_GRANTED, old)
            ends = end_of(old, reach, now, end)
            grants = (*old.grants, Grant(person.iss, person.sub, roles, now, token, reach, ends))
            state = ApprovalState.GRANTED if len(grants) >= old.quorum else ApprovalState.PENDING
            return replace(old, grants=grants, state=state), person.sub

        with self._locked():  # Otherwise another thread could deny the approval before its grant is there to be ended.
            approval = self._with_action(self._step("granted", approval_id, now, granted))
            if approval.state is ApprovalState.GRANTED and approval.reach is not Reach.ONCE:
                self.lasting.create(approval, now)
                # Another process may have denied or withdrawn the approval meanwhile.
                self.lasting.end_with_approval(self.get(approval_id))
        return approval

    @property
    def lasting(self) -> LastingGrants:
        """The lasting grants that people gave with these approvals."""
        return LastingGrants(self._grants, self._log, self._locked, self._give_up)

    def deny(self, approval_id: str, claims: Any, at: str | None = None, why: str | None = None) -> Approval:
        """Deny an approval that is not used yet. One approver is enough. Raises the errors of `grant`."""
        now, reason = time_or_now(at), recordable(why)

        def denied(old: Approval) -> tuple[Approval, str]:
            person, *_ = approver_of(old, claims, now)
            new = replace(old, state=ApprovalState.DENIED, closed_at=now, closed_by=person, why=reason)
            return new, person.sub

        return self._with_action(self._closed("denied", approval_id, now, denied))

    def withdraw(self, approval_id: str, claims: Any, at: str | None = None) -> Approval:
        """Withdraw an approval that is not used yet. Only a requester may do this. Raises the errors of `grant`."""
        now = time_or_now(at)

        def withdrawn(old: Approval) -> tuple[Approval, str]:
            person = person_of(old, claims)
            if not any(person.may_be(requester) for requester in old.requesters):
                raise ApprovalRefusedError(old.id, Refusal.NOT_A_REQUESTER, old)
            return replace(old, state=ApprovalState.WITHDRAWN, closed_at=now, closed_by=person), person.sub

        return self._with_action(self._closed("withdrawn", approval_id, now, withdrawn))

    def _give_up(self, approval_id: str, person: Person, now: str) -> None:
        """Withdraw the approval of a lasting grant that `person` revokes, unless it is used or has ended."""

        def given_up(old: Approval) -> tuple[Approval, str]:
            return replace(old, state=ApprovalState.WITHDRAWN, closed_at=now, closed_by=person), person.sub

        with suppress(ApprovalRefusedError):
            self._with_action(self._step("withdrawn", approval_id, now, given_up))

    def _closed(
        self, step: str, approval_id: str, now: str, change: Callable[[Approval], tuple[Approval, str]]
    ) -> Approval:
        """Deny or withdraw an approval, and end its lasting grant."""
        with self._locked():
            approval = self._step(step, approval_id, now, change)
            self.lasting.end_with_approval(approval)
        return approval

    def usable(
        self,
        call_digest: str,
        now: str,
        claims: Mapping[str, Any] | None = None,
        proposer: Mapping[str, Any] | None = None,
    ) -> Approval | None:
        """Return the newest approval that a call with these claims may use at `now`, or None. See `Approval.is_for`."""
        granted = reversed(self._unexpired(self.store.list(call_digest=call_digest, state=ApprovalState.GRANTED), now))
        tokens = claims or {}, proposer or {}
        found = (approval for approval in granted if approval.usable(now) and approval.is_for(*tokens))
        return next(map(self.linked, found), None)

    def consume(self, approval: Approval, now: str, *, within: Transaction | None = None) -> Approval:
        """Use up an approval, in the transaction `within`. An approval can be used only once, by one process.

        Raises:
            ApprovalRefusedError, AuditError: the approval cannot be used; or the event could not be recorded.
        """

        def consumed(old: Approval) -> tuple[Approval, str]:
            if old != approval or not old.usable(now):
                raise ApprovalRefusedError(old.id, Refusal.NOT_PENDING, old)
            return replace(old, state=ApprovalState.CONSUMED, closed_at=now), old.subject

        return self._step("consumed", approval.id, now, consumed, within)

    def consume_with(
        self, approval: Approval, now: str, step: Callable[[Callable[[Transaction | None], object]], Result]
    ) -> tuple[Result, Approval]:
        """Call `step` with a function that uses up an approval. Return the result of `step`, and the new record.

        If `step` fails after calling this function, the outcome `unknown` is recorded. Raises as `consume`.
        """
        used = approval

        def consume(transaction: Transaction | None) -> None:
            nonlocal used
            used = self.consume(approval, now, within=transaction)

        # The approvals are always locked before a transaction begins, because the opposite order could deadlock.
        with self._locked():
            if approval.state in _OPEN:
                # The expiry is stored first, because a rollback of the transaction would undo it.
                self._unexpired([approval], now)
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
            _log.exception("could not record that approval %s may have been used", used.id)

    def get(self, approval_id: str) -> Approval:
        """Return the approval with this id. Raise `ApprovalRefusedError` for an unknown id."""
        approval = self.find(approval_id) if isinstance(approval_id, str) else None
        if approval is None:
            raise ApprovalRefusedError(str(approval_id), Refusal.UNKNOWN)
        return approval

    def find(self, approval_id: str) -> Approval | None:
        """Return the approval with this id, or None."""
        approval = self.store.get(approval_id)
        return None if approval is None else self.linked(approval)

    def list(
        self, *, state: ApprovalState | None = None, tool: str | None = None, run_id: str | None = None
    ) -> Sequence[Approval]:
        """Return the approvals, oldest first. The stored state of an expired approval may still be `pending`."""
        stored = self.store.list(state=state)
        return [self.linked(each) for each in stored if tool in (None, each.tool) and run_id in (None, each.run_id)]

    def sweep(self, at: str | None = None) -> None:
        """Set the state of expired approvals and grants to `expired`. Raise `StoreError` if the store is unusable."""
        for state in _OPEN:
            self._unexpired(self.store.list(state=state), time_or_now(at))
        self.lasting.sweep(time_or_now(at))

    def _with_action(self, approval: Approval) -> Approval:
        """Approve or deny the action of a decided approval, and return the approval. A failure is only logged."""
        state = _ACTION_STATES.get(approval.state)
        if self.actions is None or state is None or approval.action_id is None:
            return approval
        try:
            action = self.actions.get(approval.action_id)
            if action is not None and action.state is not state:
                self.actions.move(action, state, approval_id=approval.id if state is ActionState.APPROVED else None)
        except PdpError:
            _log.exception("could not change the state of the action of approval %s", approval.id)
        return approval

    def _step(
        self,
        step: str,
        approval_id: str,
        now: str,
        change: Callable[[Approval], tuple[Approval, str]],
        within: Transaction | None = None,
    ) -> Approval:
        """Change a pending or granted approval. `change` returns the new record and the person who changes it."""
        with self._locked():
            while True:
                old = self.get(approval_id)
                # Within a transaction no expiry is stored: `consume_with` has already stored it.
                if old.state in _OPEN and (old.expired(now) if within is not None else not self._unexpired([old], now)):
                    old = replace(old, state=ApprovalState.EXPIRED)
                if old.state not in _OPEN:
                    raise ApprovalRefusedError(old.id, _CLOSED.get(old.state, Refusal.NOT_PENDING), old)
                new, subject = change(old)
                if self._swapped(step, old, new, subject, within):
                    return new

    def _unexpired(self, approvals: Sequence[Approval], now: str) -> Sequence[Approval]:
        """Return the approvals that have not expired. Store each expiry, in case a clock goes back."""
        for approval in approvals:
            if approval.expired(now):
                self._expire(approval)
        return [approval for approval in approvals if not approval.expired(now)]

    def _expire(self, approval: Approval) -> None:
        try:
            with self._locked():
                self._swapped("expired", approval, replace(approval, state=ApprovalState.EXPIRED), approval.subject)
        except AuditError:
            # The approval already counts as expired. The store is updated later, when the audit event can be recorded.
            _log.exception("could not record that approval %s has expired", approval.id)

    def _make_room(self, new: Approval, opened: int = 0) -> None:
        """Withdraw approvals until `new` fits in; `opened` is 1 if `new` is stored already."""
        while (old := self._replaceable(new, opened)) is not None:
            ended = replace(old, state=ApprovalState.WITHDRAWN, closed_at=new.opened_at, why=_REPLACED)
            if self._swapped("withdrawn", old, ended, old.subject):
                self._with_action(ended)

    def _replaceable(self, new: Approval, opened: int = 0) -> Approval | None:
        """Return the approval that has to be withdrawn so that `new` fits in, or None if there is room."""
        pending = self._unexpired(self.store.list(state=ApprovalState.PENDING, subject=new.subject), new.opened_at)
        of_run = [approval for approval in pending if approval.run_id == new.run_id]
        if len(of_run) - opened < MOST_OF_A_RUN and len(pending) - opened < MOST_OF_A_SUBJECT:
            return None
        # An approval with a grant is kept, so that a run cannot undo what a person did.
        replaceable = [approval for approval in of_run if not approval.grants]
        if replaceable:
            return replaceable[0]
        raise StoreFullError(
            f"too many approvals are pending: {len(of_run)} of this run, {len(pending)} of its subject",
            hint="decide on pending approvals, or withdraw those that are not needed",
        )

    def _log(self) -> AuditLog:
        if self.audit is None:
            self.audit = MemoryAudit()
        return self.audit

    def _swapped(
        self, step: str, old: Approval | None, new: Approval, subject: str, within: Transaction | None = None
    ) -> bool:
        """Record a step by `subject`, then store it. Return False if another step came first, and record that too."""
        log = self._log()
        event = _event(step, new, subject, log)
        log.append_within(event, within)
        try:
            done = self.store.add(new) == new if old is None else self.store.replace(old, new, within=within)
        except Exception:
            log.append_within({**event, "outcome": "unknown"}, within)
            raise
        if not done:
            log.append_within({**event, "outcome": "failed"}, within)
        return done


def _event(step: str, approval: Approval, subject: str, log: AuditLog) -> AuditEvent:
    request = approval.request
    return {
        "time": to_milliseconds(time.time()),
        "type": f"approval.{step}",
        "request_id": recordable(request["context"]["request_id"]),
        "run_id": recordable(approval.run_id),
        "subject": recordable(subject),
        # An agent is recorded only for changes that are made for the requester, not for a person's grants and denials.
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
