"""Where an enforcement point keeps what outlives a call: keys, actions, and what runs of agents remember."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdp.flow.keys import caller_of
from pdp.patterns.deployment import Deployment
from pdp.patterns.runs import Runs
from pdp.stores.memory_actions import MemoryActions
from pdp.stores.memory_keys import MemoryIdempotency

if TYPE_CHECKING:
    from pdp.approvals.approvals import Approvals
    from pdp.flow.call import Call
    from pdp.patterns.run import Run
    from pdp.stores.action import ActionStore
    from pdp.stores.key import IdempotencyStore


@dataclass(frozen=True)
class Keeping:
    """Where an enforcement point keeps what outlives a call.

    Attributes:
        keys: idempotency keys; see `pdp.stores.key`.
        actions: staged effects; see `pdp.stores.action`.
        runs: what each run of an agent remembers; see `pdp.patterns.runs`.
    """

    keys: IdempotencyStore
    actions: ActionStore
    runs: Runs

    @classmethod
    def of(cls, keys: IdempotencyStore | None, actions: ActionStore | None, deployment: Deployment | None) -> Keeping:
        """Return it with what is not stated in memory; staging goes into the same store of actions."""
        kept = MemoryActions() if actions is None else actions
        told = replace(deployment or Deployment(), actions=kept)
        return cls(MemoryIdempotency() if keys is None else keys, kept, Runs(told))

    def replaced_by(
        self, keys: IdempotencyStore | None, actions: ActionStore | None, deployment: Deployment | None
    ) -> Keeping:
        """Return the same with other stores, and with runs of its own where actions go elsewhere or runs are told else.

        What is None stays as it is here.
        """
        kept_keys = self.keys if keys is None else keys
        if actions is None and deployment is None:
            return replace(self, keys=kept_keys)
        told = self.runs.deployment if deployment is None else deployment
        return Keeping.of(kept_keys, self.actions if actions is None else actions, told)

    @property
    def reads_sources(self) -> bool:
        """Whether opening a run reads sources, which may take a while."""
        return bool(self.runs.deployment.sources)

    def blocks(self, approvals: Approvals) -> bool:
        """Whether a step on approvals waits: for a store, or for a thread that holds them while it waits for one."""
        return approvals.blocking or self.keys.blocking or self.actions.blocking

    def run_of(self, call: Call) -> Run:
        """Return the run that a call belongs to: its caller's of that id, or one of its own where it states none.

        Raises:
            PdpError: it cannot be opened; see `Runs.open`.
        """
        session = call.session
        return self.runs.open(None) if session is None else self.runs.open(session.run_id, caller_of(session))
