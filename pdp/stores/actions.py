"""Actions: the record of a staged effect on its way to a commit, which state may follow which, the store.

Source: tool pattern library, pattern 6 (staging issues an idempotency key and attaches the authoring decision;
re-invocation with the same key returns the existing action; it is the only path from reasoning to commit).

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
    """Where an action stands."""

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
"""The states that each state may turn into; the others are final."""


@dataclass(frozen=True, slots=True)
class Action:
    """One intended effect.

    Attributes:
        kind, target: what is to be done, and to what, as the staging tool names them.
        payload_digest: of what is to be committed; the payload itself is not stored.
        idempotency_key: the caller's, or one that was issued.
        approval_id: the approval by which it was approved; None: not yet, or the policy alone allowed it.
        created_at: RFC 3339 in UTC with `Z`, to the millisecond.
    """

    id: str
    kind: str
    target: str
    payload_digest: str
    state: ActionState
    decision_id: str
    idempotency_key: str
    approval_id: str | None
    created_at: str

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
        """Return a new action; `idempotency_key`: None: one is issued; `now`: seconds since 1970.

        UsageError: a text is empty.
        """
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
        """Return the action in another state; `approval_id` is of one that becomes approved.

        ActionStateError: that state does not follow.
        """
        if state not in FOLLOWS.get(self.state, ()):
            raise ActionStateError(f"action {self.id} is {self.state}, and cannot become {state}")
        return replace(self, state=state, approval_id=approval_id or self.approval_id)


class ActionConflictError(StateError):
    """The idempotency key stands for another action of the same owner."""

    code = "actions.conflict"


class ActionStateError(StateError):
    """The action is not in the expected state, or the new state does not follow on it."""

    code = "actions.state"


class ActionStore(ABC):
    """A store of actions. Safe to share between threads; each method is one atomic step, and raises StoreError.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    """

    blocking: bool

    @abstractmethod
    def add(self, action: Action, key_id: str) -> Action:
        """Store a new action and return it; or return the stored one with this key, in whatever state it is now."""

    @abstractmethod
    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""

    @abstractmethod
    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions, in one state where that is stated, in the order of being staged."""

    @abstractmethod
    def replace(self, old: Action, new: Action) -> bool:
        """Put `new` in the place of `old` if what is stored equals `old`, and return whether it did."""

    def stage(self, action: Action, owner: str) -> Action:
        """Store a new action, or return the stored one with its key.

        `owner`: whose key it is, such as tenant and subject; equal keys of two owners have nothing in common.

        ActionConflictError: the key stands for another kind, target or payload.
        """
        stored = self.add(action, digest(canonical([owner, action.idempotency_key])))
        if (stored.kind, stored.target, stored.payload_digest) != (action.kind, action.target, action.payload_digest):
            raise ActionConflictError(
                f"the idempotency key {action.idempotency_key!r:.60} stands for another action, {stored.id}",
                hint="use a new key for another kind, target or payload",
            )
        return stored

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Move an action, as it was last read, to another state and return it. Of all that do so, one succeeds.

        ActionStateError: it is not there, it has changed, or the state does not follow.
        """
        new = action.moved(state, approval_id)
        if not self.replace(action, new):
            stored = self.get(action.id)
            change = "is not there" if stored is None else f"is {stored.state} by now, and was {action.state}"
            raise ActionStateError(f"action {action.id} {change}", hint="get it again and decide anew")
        return new
