"""What patterns need of a store of actions: to stage one, and to get the same one for the same key."""

from __future__ import annotations

from typing import Protocol


class StagedAction(Protocol):
    """An action as a store keeps it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """What it does: the name of the tool that commits it."""

    @property
    def target(self) -> str:
        """The system of record that it changes, and what of it."""

    @property
    def state(self) -> str:
        """Where it stands: staged, approved, denied, committed, failed, compensated."""

    @property
    def payload_digest(self) -> str:
        """The digest of what is to be done, as `pdp.canonical.digest` writes it."""

    @property
    def idempotency_key(self) -> str:
        """The key that it was staged with."""


class ActionStore(Protocol):
    """Keeps actions; pdp/execution/actions.py has stores of this form. Shared between threads."""

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
    ) -> StagedAction:
        """Return the action of this owner's key: a new one in state staged, or the one that has it already.

        The same key with another kind, target or payload is an error, or answered with the first; either will do.
        """
