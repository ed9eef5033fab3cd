"""Where approvals are kept: the protocol, and a store in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from pdp.stores.approval import ApprovalState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from pdp.stores.approval import Approval

KEPT: Final = 100_000
"""How many approvals a store in memory keeps. One that is forgotten lets nothing through."""


class ApprovalStore(Protocol):
    """Where approvals are. Safe to share between threads; each method is one atomic step.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    """

    blocking: bool

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval and return it; or return, unchanged, the pending one of the same `call_digest`."""

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval of that id, if there is one."""

    def list(self, *, call_digest: str | None = None, state: ApprovalState | None = None) -> Sequence[Approval]:
        """Return the approvals, of one call or in one state where that is stated, in the order of being added."""

    def replace(self, old: Approval, new: Approval, *, within: Connection | None = None) -> bool:
        """Put `new` in the place of `old` if what is stored equals `old`, and return whether it did.

        `within`: the transaction to do it in, for a store of the same database.
        """


class MemoryApprovals:
    """A store in memory: what is in it ends with the process. It keeps the last 100,000 approvals."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Approval] = {}
        self._by_call: dict[str, list[str]] = {}

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval, or return the pending one of the same call."""
        with self._lock:
            for each in self._of(approval.call_digest):
                if each.state is ApprovalState.PENDING:
                    return each
            self._all[approval.id] = approval
            self._by_call.setdefault(approval.call_digest, []).append(approval.id)
            if len(self._all) > KEPT:
                self._forget(next(iter(self._all)))
            return approval

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval of that id, if there is one."""
        return self._all.get(approval_id)

    def list(self, *, call_digest: str | None = None, state: ApprovalState | None = None) -> Sequence[Approval]:
        """Return the approvals in the order of being added."""
        with self._lock:
            found = list(self._all.values()) if call_digest is None else self._of(call_digest)
        return found if state is None else [each for each in found if each.state is state]

    def replace(self, old: Approval, new: Approval, *, within: Connection | None = None) -> bool:  # noqa: ARG002 - of others
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
