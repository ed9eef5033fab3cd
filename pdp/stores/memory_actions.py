"""Actions in memory: for one process, and for as long as it lives."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdp.stores.action import Action, changed_since, key_id, moved, same_action, staged
from pdp.stores.errors import StoreFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdp.stores.action import ActionState

KEPT: Final = 100_000
"""How many actions are kept. One that is forgotten could be staged twice, so beyond them no more are."""


class MemoryActions:
    """Actions in memory, at most 100,000.

    Args:
        ids: names an action by how many have been staged with it, from 1; each by another name. When absent, ids are
            unguessable, as they have to be wherever who knows one could use it.
    """

    blocking = False

    def __init__(self, *, ids: Callable[[int], str] | None = None) -> None:
        self._ids = ids
        self._lock = threading.Lock()
        self._actions: dict[str, Action] = {}
        self._by_key: dict[str, str] = {}

    def stage(
        self,
        *,
        owner: str,
        kind: str,
        target: str,
        payload_digest: str,
        decision_id: str,
        idempotency_key: str | None = None,
        now: float,
    ) -> Action:
        """Stage an action, or return the one that is there; see `ActionStore`."""
        new = staged(
            kind=kind,
            target=target,
            payload_digest=payload_digest,
            decision_id=decision_id,
            idempotency_key=idempotency_key,
            now=now,
        )
        key = key_id(owner, new)
        with self._lock:
            there = self._by_key.get(key)
            if there is not None:
                return same_action(self._actions[there], new)
            if len(self._actions) >= KEPT:
                raise StoreFullError(f"{KEPT} actions are kept in memory", hint="keep them in a database")
            if self._ids is not None:
                new = replace(new, id=self._ids(len(self._actions) + 1))
            self._actions[new.id] = new
            self._by_key[key] = new.id
            return new

    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""
        return self._actions.get(action_id)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions in the order of being staged."""
        with self._lock:
            return [action for action in self._actions.values() if state is None or action.state is state]

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Let `action` be in another state; see `ActionStore`."""
        new = moved(action, state, approval_id)
        with self._lock:
            there = self._actions.get(action.id)
            if there != action:
                raise changed_since(action, there)
            self._actions[action.id] = new
            return new
