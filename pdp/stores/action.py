"""A staged effect on its way to a commit: its record, and which state may follow which.

Source: tool pattern library, pattern 6 (staging issues an idempotency key and attaches the authoring decision;
re-invocation with the same key returns the existing action; it is the only path from reasoning to commit).

    staged ──> approved ──> committed ──> compensated
          │            ├──> failed ─────> compensated
          └──> denied <┘
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from pdp.clock import to_milliseconds
from pdp.decision import new_id
from pdp.errors import PdpError, UsageError
from pdp.json import JsonValueError, canonical, check_json, digest

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    ActionState.DENIED: frozenset[ActionState](),
    ActionState.COMPENSATED: frozenset[ActionState](),
}
"""The states that each state may turn into."""


@dataclass(frozen=True, slots=True)
class Action:
    """One effect that is intended.

    Attributes:
        id: unguessable.
        kind, target: what is to be done, and to what, as the staging tool names them.
        payload_digest: of what is to be committed; the payload itself is not kept.
        decision_id: the decision that allowed staging it.
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

    def as_json(self) -> dict[str, Any]:
        """Return the record as plain JSON."""
        return {**asdict(self), "state": self.state.value}


class ActionConflictError(PdpError):
    """The idempotency key stands for another action of the same owner."""

    code = "actions.conflict"


class ActionStateError(PdpError):
    """The action is not in the state that was expected, or the state asked for does not follow on it."""

    code = "actions.state"


class ActionStore(Protocol):
    """Where actions are kept. Safe to share between threads; each method is one atomic step, and raises StoreError.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    """

    blocking: bool

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
        """Stage an action, or return the one that is there under this key, in whatever state it is now.

        Args:
            owner: whose key it is, such as tenant and subject; equal keys of two owners have nothing in common.
            kind: what is to be done.
            target: to what.
            payload_digest: of what is to be committed.
            decision_id: the decision that allows it.
            idempotency_key: None: one is issued.
            now: seconds since 1970.

        Raises:
            ActionConflictError: the key stands for another kind, target or payload.
            UsageError: a text is empty or no JSON.
        """

    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions, in one state where that is stated, in the order of being staged."""

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Let `action` be in another state and return it so. Of all that move it from one state, one gets through.

        Args:
            action: as it was last seen; it must be so still.
            state: one that may follow.
            approval_id: by which it is approved; for `approved` alone.

        Raises:
            ActionStateError: it is not there, no longer so, or the state does not follow.
        """


def staged(
    *, kind: str, target: str, payload_digest: str, decision_id: str, idempotency_key: str | None, now: float
) -> Action:
    """Return a new action; arguments and errors as of `ActionStore.stage`."""
    key = new_id() if idempotency_key is None else idempotency_key
    texts = {
        "kind": kind, "target": target, "payload_digest": payload_digest, "decision_id": decision_id,
        "idempotency_key": key,
    }  # fmt: skip
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise UsageError(f"an action cannot be staged: {name} is no text, or empty")
        try:
            check_json(text, at=name)
        except JsonValueError as error:
            raise UsageError(f"an action cannot be staged: {error}") from error
    return Action(id=new_id(), state=ActionState.STAGED, approval_id=None, created_at=to_milliseconds(now), **texts)


def key_id(owner: str, action: Action) -> str:
    """Return the digest of an action's idempotency key, and of whose it is."""
    return digest(canonical([owner, action.idempotency_key]))


def same_action(old: Action, new: Action) -> Action:
    """Return `old`, which has the key of `new`, if both are meant to do the same.

    Raises:
        ActionConflictError: they are not.
    """
    meant = (old.kind, old.target, old.payload_digest)
    if meant != (new.kind, new.target, new.payload_digest):
        raise ActionConflictError(
            f"the idempotency key {new.idempotency_key!r:.60} stands for another action, {old.id}",
            hint="use a new key for another kind, target or payload",
        )
    return old


def moved(old: Action, state: ActionState, approval_id: str | None) -> Action:
    """Return an action in another state.

    Raises:
        ActionStateError: that state does not follow.
    """
    if state not in FOLLOWS[old.state]:
        raise ActionStateError(f"action {old.id} is {old.state}, and cannot become {state}")
    if approval_id is not None and state is not ActionState.APPROVED:
        raise ActionStateError(f"action {old.id}: only what becomes approved has an approval, and not what is {state}")
    return replace(old, state=state, approval_id=old.approval_id if approval_id is None else approval_id)


def changed_since(action: Action, now: Action | None) -> ActionStateError:
    """Return the error of an action that is not as it was last seen; `now`: as it is, None: not there."""
    told = "is not there" if now is None else f"is {now.state} by now, and was {action.state}"
    return ActionStateError(f"action {action.id} {told}", hint="get it again and decide anew")
