"""Actions: the record of a staged effect, the order of its states, and the protocol of the store.

Source: tool pattern library, pattern 6 (staging issues an idempotency key and attaches the authoring decision;
re-invocation with the same key returns the existing action; staging is the only path from reasoning to commit).

    staged ──> approved ──> committed ──> compensated
          │            ├──> failed ─────> compensated
          └──> denied <┘
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from pdp.clock import to_milliseconds
from pdp.decision import new_id
from pdp.errors import StateError, UsageError
from pdp.json import canonical, digest


class ActionState(StrEnum):
    """The state of an action."""

    STAGED = "staged"
    APPROVED = "approved"
    DENIED = "denied"
    COMMITTED = "committed"
    FAILED = "failed"
    COMPENSATED = "compensated"


FOLLOWS: Final = {
    ActionState.STAGED: frozenset((ActionState.APPROVED, ActionState.DENIED)),
    ActionState.APPROVED: frozenset((ActionState.COMMITTED, ActionState.FAILED, ActionState.DENIED)),
    ActionState.COMMITTED: frozenset((ActionState.COMPENSATED,)),
    ActionState.FAILED: frozenset((ActionState.COMPENSATED,)),
}
"""The states that may follow each state. States without an entry are final."""


@dataclass(frozen=True, slots=True)
class Action:
    """An intended effect of a tool, which is staged, approved and then committed."""

    id: str
    kind: str  # Kind and target are as the staging call names them.
    target: str
    payload_digest: str  # The payload itself is not stored.
    state: ActionState
    decision_id: str
    idempotency_key: str  # The caller's, or a generated one.
    approval_id: str | None  # None before the approval, or if the policy alone allowed the action.
    created_at: str  # RFC 3339 in UTC with `Z`, to the millisecond.

    @classmethod
    def staged(
        cls,
        *,
        kind: str,
        target: str,
        payload_digest: str,
        decision_id: str,
        idempotency_key: str | None = None,
        now: float,
    ) -> Self:
        """Return a new action, staged at `now` (Unix time), by default with a random key. No text may be empty."""
        key = new_id() if idempotency_key is None else idempotency_key
        texts = {
            "kind": kind, "target": target, "payload_digest": payload_digest, "decision_id": decision_id,
            "idempotency_key": key,
        }  # fmt: skip
        for name, text in texts.items():
            if not text:
                raise UsageError(f"an action cannot be staged: {name} is empty")
        return cls(id=new_id(), state=ActionState.STAGED, approval_id=None, created_at=to_milliseconds(now), **texts)

    def moved(self, state: ActionState, approval_id: str | None = None) -> Self:
        """Return the action in another state. Raise `ActionStateError` if that state cannot follow the current one."""
        if state not in FOLLOWS.get(self.state, ()):
            raise ActionStateError(f"action {self.id} is {self.state} and cannot become {state}")
        return replace(self, state=state, approval_id=approval_id or self.approval_id)


class ActionConflictError(StateError):
    """The idempotency key belongs to another action of the owner."""

    code = "actions.conflict"


class ActionStateError(StateError):
    """The action is not in the expected state, or the new state cannot follow the current one."""

    code = "actions.state"


class ActionStore(ABC):
    """A thread-safe store of actions. Each method is atomic, and may raise `StoreError`."""

    blocking: bool  # Whether the methods wait for a disk or a network.

    @abstractmethod
    def add(self, action: Action, key_id: str) -> Action:
        """Store a new action and return it. If the owner has an action with the same key, return the stored action."""

    @abstractmethod
    def get(self, action_id: str) -> Action | None:
        """Return the action with this id, or None."""

    @abstractmethod
    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return all actions, or the actions in one state, in the order in which they were staged."""

    @abstractmethod
    def replace(self, old: Action, new: Action) -> bool:
        """Replace the stored action `old` by `new`. If the stored action differs from `old`, return False."""

    def stage(self, action: Action, owner: str) -> Action:
        """Store a new action. If the owner has staged the same action with the same key, return that action.

        Each `owner` (tenant and subject) has separate keys. Raises `ActionConflictError` if the key has another action.
        """
        stored = self.add(action, digest(canonical([owner, action.idempotency_key])))
        if (stored.kind, stored.target, stored.payload_digest) != (action.kind, action.target, action.payload_digest):
            raise ActionConflictError(
                f"the idempotency key {action.idempotency_key!r:.60} belongs to another action, {stored.id}",
                hint="use a new key for another kind, target or payload",
            )
        return stored

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Store and return the action in another state. Raise `ActionStateError` if the stored action forbids that."""
        new = action.moved(state, approval_id)
        if not self.replace(action, new):
            stored = self.get(action.id)
            change = "does not exist" if stored is None else f"is now {stored.state}, not {action.state}"
            raise ActionStateError(f"action {action.id} {change}", hint="read the action again and decide again")
        return new
