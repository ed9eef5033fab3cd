"""Stores in memory: for one process, and for as long as it lives."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdp.decision import new_id
from pdp.stores.actions import changed_since, key_id, same_action
from pdp.stores.approvals import ApprovalState
from pdp.stores.errors import StoreFullError
from pdp.stores.keys import LASTING, Fresh, KeyState, NotApproved, NotBegunError, started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from pdp.proposal import Execution
    from pdp.stores.actions import Action, ActionState
    from pdp.stores.approvals import Approval
    from pdp.stores.keys import ApprovalUse, Begun, IdempotencyKey, KeyRecord, Known

CAPACITY: Final = 100_000
"""How many records a store in memory holds.

A forgotten key or action could be used twice, so a full store takes no more of them; a forgotten approval lets nothing
through, so the oldest goes.
"""


class MemoryIdempotency:
    """Keys in memory, at most 100,000 that have not expired."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, KeyRecord] = {}
        self._ids: dict[str, str] = {}

    def look(self, key: IdempotencyKey, arguments_digest: str, now: float) -> Known | None:
        """Return what `begin` would find; see `IdempotencyStore`."""
        record = self._records.get(key.id)
        return None if record is None else record.meaning(arguments_digest, now)

    def begin(
        self,
        key: IdempotencyKey,
        arguments_digest: str,
        *,
        ttl: float | None,
        now: float,
        lasting: float = LASTING,
        approval: ApprovalUse | None = None,
    ) -> Begun:
        """Take the key if it is free; see `IdempotencyStore`.

        Raises:
            StoreFullError: the store holds 100,000 keys that have not expired.
        """
        token = new_id()
        new = started(key, arguments_digest, token, ttl=ttl, now=now, lasting=lasting, approval=approval)
        with self._lock:
            known = self.look(key, arguments_digest, now)
            if known is not None:
                return known
            if len(self._records) >= CAPACITY and not self._pruned(now):
                raise StoreFullError(
                    f"{CAPACITY} idempotency keys are in memory, and none has expired",
                    hint="state a ttl in the entries, or store keys in a database",
                )
            if approval is not None and not approval.consume(None):
                return NotApproved()
            self._forget(key.id)
            self._records[key.id] = new
            self._ids[token] = key.id
            return Fresh(token)

    def finish(self, token: str, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Store the outcome of the run; see `IdempotencyStore`."""
        with self._lock:
            name = self._ids.get(token)
            record = None if name is None else self._records[name]
            if name is None or record is None or record.state is not KeyState.STARTED:
                raise NotBegunError("no run was begun with this token, or it is finished")
            self._end(name, record.ended(execution, now, effects=effects))

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Store the outcome of an unknown run; see `IdempotencyStore`."""
        with self._lock:
            record = self._records.get(key.id)
            if record is None or not record.settleable(now):
                raise NotBegunError(f"the idempotency key {key.key!r:.60} has no run whose outcome is unknown")
            self._end(key.id, record.ended(execution, now))

    def prune(self, now: float) -> int:
        """Delete what has expired; see `IdempotencyStore`."""
        with self._lock:
            return self._pruned(now)

    def _end(self, name: str, ended: KeyRecord | None) -> None:
        if ended is None:
            self._forget(name)
        else:
            self._records[name] = ended

    def _pruned(self, now: float) -> int:
        expired = [name for name, record in self._records.items() if record.expired(now)]
        for name in expired:
            self._forget(name)
        return len(expired)

    def _forget(self, name: str) -> None:
        record = self._records.pop(name, None)
        if record is not None:
            del self._ids[record.token]


class MemoryActions:
    """Actions in memory, at most 100,000.

    Args:
        ids: names an action by how many have been staged with it, from 1; each by another name. When absent, ids are
            unguessable, as they have to be wherever knowing one lets somebody use it.
    """

    blocking = False

    def __init__(self, *, ids: Callable[[int], str] | None = None) -> None:
        self._ids = ids
        self._lock = threading.Lock()
        self._actions: dict[str, Action] = {}
        self._by_key: dict[str, str] = {}

    def stage(self, action: Action, owner: str) -> Action:
        """Store a new action, or return the stored one; see `ActionStore`.

        Raises:
            StoreFullError: the store holds 100,000 actions.
        """
        key = key_id(owner, action)
        with self._lock:
            stored = self._by_key.get(key)
            if stored is not None:
                return same_action(self._actions[stored], action)
            if len(self._actions) >= CAPACITY:
                raise StoreFullError(f"{CAPACITY} actions are in memory", hint="store them in a database")
            if self._ids is not None:
                action = replace(action, id=self._ids(len(self._actions) + 1))
            self._actions[action.id] = action
            self._by_key[key] = action.id
            return action

    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""
        return self._actions.get(action_id)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions in the order of being staged."""
        with self._lock:
            return [action for action in self._actions.values() if state is None or action.state is state]

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Move an action to another state; see `ActionStore`."""
        new = action.moved(state, approval_id)
        with self._lock:
            stored = self._actions.get(action.id)
            if stored != action:
                raise changed_since(action, stored)
            self._actions[action.id] = new
            return new


class MemoryApprovals:
    """Approvals in memory, the last 100,000."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Approval] = {}
        self._by_call: dict[str, list[str]] = {}

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval, or return the pending one of the same call."""
        with self._lock:
            for stored in self._of(approval.call_digest):
                if stored.state is ApprovalState.PENDING:
                    return stored
            self._all[approval.id] = approval
            self._by_call.setdefault(approval.call_digest, []).append(approval.id)
            if len(self._all) > CAPACITY:
                self._forget(next(iter(self._all)))
            return approval

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval of that id, if there is one."""
        return self._all.get(approval_id)

    def list(self, *, call_digest: str | None = None, state: ApprovalState | None = None) -> Sequence[Approval]:
        """Return the approvals in the order of being added."""
        with self._lock:
            approvals = list(self._all.values()) if call_digest is None else self._of(call_digest)
        return approvals if state is None else [approval for approval in approvals if approval.state is state]

    def replace(self, old: Approval, new: Approval, *, within: Connection | None = None) -> bool:  # noqa: ARG002 - of databases
        """Put `new` in the place of `old`, if it is still there."""
        with self._lock:
            if self._all.get(old.id) != old:
                return False
            self._all[old.id] = new
            return True

    def _of(self, call_digest: str) -> Sequence[Approval]:
        return [self._all[approval_id] for approval_id in self._by_call.get(call_digest, ())]

    def _forget(self, approval_id: str) -> None:
        call_digest = self._all.pop(approval_id).call_digest
        rest = self._by_call[call_digest]
        rest.remove(approval_id)
        if not rest:
            del self._by_call[call_digest]
