"""Actions of one scenario, called `action-1`, `action-2`, …: an id that nobody can guess cannot stand in a scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pdp.execution.action_memory import MemoryActions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.execution.actions import Action, ActionState


class NumberedActions:
    """Actions in memory, numbered in the order of being staged. For one scenario, whose steps follow one another."""

    blocking = False

    def __init__(self) -> None:
        self._kept = MemoryActions()
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}

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
        """Stage an action, or return the one that is there; see `pdp.execution.actions.ActionStore`."""
        action = self._kept.stage(
            owner=owner,
            kind=kind,
            target=target,
            payload_digest=payload_digest,
            decision_id=decision_id,
            idempotency_key=idempotency_key,
            now=now,
        )
        name = self._names.setdefault(action.id, f"action-{len(self._names) + 1}")
        self._ids[name] = action.id
        return self._named(action)

    def get(self, action_id: str) -> Action | None:
        """Return the action of that number, if there is one."""
        found = self._kept.get(self._ids.get(action_id, ""))
        return None if found is None else self._named(found)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions in the order of being staged."""
        return [self._named(action) for action in self._kept.list(state=state)]

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Let `action` be in another state; see `pdp.execution.actions.ActionStore`."""
        own = replace(action, id=self._ids.get(action.id, ""))
        return self._named(self._kept.move(own, state, approval_id=approval_id))

    def _named(self, action: Action) -> Action:
        return replace(action, id=self._names[action.id])
