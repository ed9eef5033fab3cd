"""Rules of lasting grants: people who may give and revoke them, calls that they cover, and the count of their uses.

A grant is made from an approval that people granted with the reach `run` or `until`. The policy decides whether it
clears the STEP_UP of a later call. Each use is one compare-and-swap, in the transaction that reserves the call's key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from pdp.approvals.people import ApprovalRefusedError, Refusal, named_person, time_or_now
from pdp.audit.chain import AuditEvent, AuditLog, recordable
from pdp.clock import LAST_SECOND, to_milliseconds, to_seconds
from pdp.errors import AuditError, PdpError, UsageError
from pdp.session import Person
from pdp.stores.approvals import Approval, LastingOffer, Reach, Transaction, are_for
from pdp.stores.grants import GrantState, GrantStore, LastingGrant, scopes_of

Result = TypeVar("Result")

_log = logging.getLogger("pdp.approvals")

_DEFAULT_SECONDS: Final = 24 * 3600  # How long a grant lasts without `until`, unless its entry allows less.


class GrantRefusedError(PdpError):
    """A lasting grant cannot be used or revoked: it has ended, or belongs to other people."""

    code = "approvals.grant_refused"


class GrantUnknownError(GrantRefusedError):
    """No lasting grant has this id."""

    code = "approvals.grant_unknown"


def reach_of(value: Reach | str) -> Reach:
    """Return the reach with this name. Raise `UsageError` for any other text."""
    try:
        return Reach(value)
    except ValueError:
        names = ", ".join(Reach)
        raise UsageError(f"{value!r:.60} is not a reach", hint=f"write one of: {names}") from None


def end_of(approval: Approval, reach: Reach, now: str, until: str | None) -> str | None:
    """Return the end of a grant with this reach; None for `once`. Raise `ApprovalRefusedError` for a longer reach."""
    if reach is Reach.ONCE:
        return None
    offer = approval.lasting
    if offer is None or reach not in offer.reaches or (reach is Reach.RUN and not approval.run_id):
        raise ApprovalRefusedError(approval.id, Refusal.REACH, approval)
    start = datetime.fromisoformat(now).timestamp()
    latest = to_seconds(min(start + offer.seconds, LAST_SECOND))
    if until is None:
        return to_seconds(min(start + min(offer.seconds, _DEFAULT_SECONDS), LAST_SECOND))
    if not now < until <= latest:
        raise ApprovalRefusedError(approval.id, Refusal.REACH, approval)
    return until


def may_revoke(grant: LastingGrant, claims: Any) -> bool:
    """Return whether the claims are of a requester, of an approver, or of a person who gave the grant."""
    person = named_person(claims)
    if person is None:
        return False
    roles = claims.get("roles")
    if isinstance(roles, list) and any(role in grant.approvers for role in roles):
        return True
    return any(map(person.may_be, (*grant.requesters, *(each.person for each in grant.grants))))


class LastingGrants:
    """The lasting grants of `Approvals`. Safe to share between threads and enforcement points."""

    def __init__(
        self,
        store: GrantStore,
        log: Callable[[], AuditLog],
        locked: Callable[[], AbstractContextManager[None]],
        give_up: Callable[[str, Person, str], None],
    ) -> None:
        self._store, self._log, self._locked, self._give_up = store, log, locked, give_up

    def get(self, grant_id: str) -> LastingGrant:
        """Return the grant with this id. Raise `GrantUnknownError` for an unknown id."""
        grant = self._store.get(grant_id) if isinstance(grant_id, str) else None
        if grant is None:
            raise GrantUnknownError(f"grant {recordable(str(grant_id))}: no grant has that id")
        return grant

    def list(self, *, active: bool = False) -> Sequence[LastingGrant]:
        """Return the grants, oldest first; with `active`, only those that can still let a call through."""
        now = to_seconds(time.time())
        grants = self._store.list(state=GrantState.ACTIVE if active else None)
        return [grant for grant in grants if not active or grant.standing(now) is GrantState.ACTIVE]

    def create(self, approval: Approval, now: str) -> LastingGrant:
        """Make a lasting grant from a granted approval whose people chose the reach `run` or `until`."""
        offer, reach = approval.lasting, approval.reach
        if offer is None or reach is Reach.ONCE:
            raise ApprovalRefusedError(approval.id, Refusal.REACH, approval)
        grant = LastingGrant(
            id=approval.id,
            reach=reach,
            scope=scopes_of(offer, approval.run_id)[reach],
            state=GrantState.ACTIVE,
            tool=approval.tool,
            subject=approval.subject,
            agent=approval.agent,
            run_id=approval.run_id,
            requesters=approval.requesters,
            approvers=approval.approvers,
            about=offer.about,
            most=offer.most,
            codes=approval.reasons,
            grants=approval.grants,
            created_at=now,
            expires_at=min(each.until for each in approval.grants if each.until is not None),
            uses=offer.uses,
            uses_left=offer.uses,
            markings=tuple((approval.request["context"].get("flow") or {}).get("markings", ())),
        )
        with self._locked():
            self._record("created", grant, approval.grants[-1].sub)
            self._store.add(grant)
        return grant

    def covering(
        self,
        offer: LastingOffer,
        run_id: str | None,
        now: str,
        claims: Mapping[str, Any] | None = None,
        proposer: Mapping[str, Any] | None = None,
    ) -> LastingGrant | None:
        """Return the grant that may cover a call at `now`, or None. The policy decides whether the grant clears it."""
        for scope in scopes_of(offer, run_id).values():
            for grant in reversed(self._store.list(scope=scope, state=GrantState.ACTIVE)):
                if grant.standing(now) is GrantState.EXPIRED:
                    self._expire(grant, now)
                elif grant.usable(now, offer.most) and are_for(grant.grants, claims or {}, proposer or {}):
                    return grant
        return None

    def use(self, grant_id: str, now: str, *, within: Transaction | None = None) -> LastingGrant:
        """Take one use of a grant, in the transaction `within`. Concurrent calls never take more than all uses.

        Raises:
            GrantRefusedError, AuditError: the grant has ended; or the use could not be recorded.
        """
        while True:
            old = self.get(grant_id)
            if not old.usable(now, old.most):
                raise GrantRefusedError(f"grant {old.id}: it is {old.standing(now)} and lets no call through")
            left = old.uses_left - 1
            new = replace(old, uses_left=left, state=GrantState.ACTIVE if left else GrantState.USED_UP)
            if self._swapped("used", old, new, old.subject, within):
                return new

    def use_with(
        self, grant: LastingGrant, now: str, step: Callable[[Callable[[Transaction | None], object]], Result]
    ) -> Result:
        """Call `step` with a function that takes one use of the grant. Raises as `use`."""
        with self._locked():
            return step(lambda transaction: self.use(grant.id, now, within=transaction))

    def revoke(self, grant_id: str, claims: Any, at: str | None = None, why: str | None = None) -> LastingGrant:
        """End a grant at once, in every process; `why` is the reason. See `may_revoke` for who may do this.

        Raises:
            GrantRefusedError: the grant is unknown or has ended, or the claims name no person who may revoke it.
            AuditError, UsageError: the event could not be recorded; or `at` is not a time.
        """
        now = time_or_now(at)
        while True:
            old = self.get(grant_id)
            if old.standing(now) is not GrantState.ACTIVE:
                raise GrantRefusedError(f"grant {old.id}: it is {old.standing(now)}")
            person = named_person(claims)
            if person is None:
                raise GrantRefusedError(f"grant {old.id}: the claims name no person")
            if not may_revoke(old, claims):
                raise GrantRefusedError(f"grant {old.id}: only its subject, its people and its approvers may revoke it")
            new = replace(old, state=GrantState.REVOKED, closed_at=now, closed_by=person, why=recordable(why))
            with self._locked():
                self._give_up(old.id, person, now)
                if self._swapped("revoked", old, new, person.sub):
                    return new

    def end_with_approval(self, approval: Approval) -> None:
        """End the grant of an approval if a person has denied or withdrawn it. Raise `AuditError` if that fails."""
        person, now = approval.closed_by, approval.closed_at
        while person is not None and (old := self._store.get(approval.id)) and old.state is GrantState.ACTIVE:
            self._swapped(
                "revoked", old, replace(old, state=GrantState.REVOKED, closed_at=now, closed_by=person), person.sub
            )

    def end_run(self, run_id: str, claims: Mapping[str, Any]) -> None:
        """End the grants with the reach `run` of a subject's run that has ended. Raise `AuditError` if that fails."""
        subject, now = Person(claims.get("iss") or None, str(claims.get("sub"))), time_or_now(None)
        for grant in self._store.list(state=GrantState.ACTIVE, run_id=run_id):
            if (grant.reach, grant.requesters[0]) == (Reach.RUN, subject):
                # A call may have taken a use meanwhile, so the grant is read again until the step is stored.
                while (old := self._store.get(grant.id)) and not self._ended(old, now):
                    pass

    def sweep(self, now: str) -> None:
        """Set the state of grants that have expired at the time `now` to `expired`."""
        for grant in self._store.list(state=GrantState.ACTIVE):
            if grant.standing(now) is GrantState.EXPIRED:
                self._expire(grant, now)

    def _ended(self, grant: LastingGrant, now: str) -> bool:
        if grant.state is not GrantState.ACTIVE:
            return True
        with self._locked():
            ended = replace(grant, state=GrantState.EXPIRED, closed_at=now)
            return self._swapped("expired", grant, ended, grant.subject)

    def _expire(self, grant: LastingGrant, now: str) -> None:
        try:
            self._ended(grant, now)
        except AuditError:
            # The grant already counts as expired. The store is updated later, when the audit event can be recorded.
            _log.exception("could not record that grant %s has expired", grant.id)

    def _swapped(
        self, step: str, old: LastingGrant, new: LastingGrant, subject: str, within: Transaction | None = None
    ) -> bool:
        """Record a step, then store it. Return False if another step came first, and record that too."""
        event = self._record(step, new, subject, within)
        try:
            done = self._store.replace(old, new, within=within)
        except Exception:
            self._log().append_within({**event, "outcome": "unknown"}, within)
            raise
        if not done:
            self._log().append_within({**event, "outcome": "failed"}, within)
        return done

    def _record(self, step: str, grant: LastingGrant, subject: str, within: Transaction | None = None) -> AuditEvent:
        event: AuditEvent = {
            "time": to_milliseconds(time.time()),
            "type": f"grant.{step}",
            "run_id": recordable(grant.run_id),
            "subject": recordable(subject),
            "agent": recordable(grant.agent) if step == "used" else None,
            "tool_name": grant.tool,
            "status": grant.state,
            "codes": grant.codes,
            "approval_id": grant.id,
            "grant_id": grant.id,
        }
        self._log().append_within(event, within)
        return event
