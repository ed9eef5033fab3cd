"""Idempotency keys in memory: for one process, and for as long as it lives."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdp.decision import new_id
from pdp.execution.outcome import known, settled
from pdp.stores.errors import StoreFullError
from pdp.stores.key import LASTING, Fresh, KeyRecord, KeyState, NotApproved, NotBegunError, started

if TYPE_CHECKING:
    from pdp.execution.run import Execution
    from pdp.stores.key import ApprovalUse, Begun, Conflict, IdempotencyKey, Running, Stored, Unknown

KEPT: Final = 100_000
"""How many keys are kept. One that is forgotten could be used twice, so beyond them no more are begun."""


class MemoryIdempotency:
    """Keys in memory, at most 100,000 that have not expired."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, KeyRecord] = {}
        self._ids: dict[str, str] = {}

    def look(
        self, key: IdempotencyKey, arguments_digest: str, now: float
    ) -> Stored | Conflict | Running | Unknown | None:
        """Return what `begin` would find; see `IdempotencyStore`."""
        record = self._records.get(key.id)
        return None if record is None else known(record, arguments_digest, now)

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
            StoreFullError: 100,000 keys are kept that have not expired.
        """
        token = new_id()
        new = started(key, arguments_digest, token, ttl=ttl, now=now, lasting=lasting, approval=approval)
        with self._lock:
            found = self.look(key, arguments_digest, now)
            if found is not None:
                return found
            if len(self._records) >= KEPT and not self._pruned(now):
                raise StoreFullError(
                    f"{KEPT} idempotency keys are kept in memory, and none may be forgotten yet",
                    hint="state a ttl in the entries, or keep keys in a database",
                )
            if approval is not None and not approval.consume(None):
                return NotApproved()
            self._forget(key.id)
            self._records[key.id] = new
            self._ids[token] = key.id
            return Fresh(token)

    def finish(self, token: str, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Keep what the run came to; see `IdempotencyStore`."""
        with self._lock:
            key_id = self._ids.get(token)
            record = None if key_id is None else self._records[key_id]
            if key_id is None or record is None or record.state is not KeyState.STARTED:
                raise NotBegunError("no run was begun with this token, or it is finished")
            self._end(key_id, record, execution, now, effects=effects)

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Say what came of an unknown run; see `IdempotencyStore`."""
        with self._lock:
            record = self._records.get(key.id)
            if record is None or not record.settleable(now):
                raise NotBegunError(f"the idempotency key {key.key!r:.60} has no run whose outcome is unknown")
            self._end(key.id, record, execution, now, effects=True)

    def prune(self, now: float) -> int:
        """Forget what has expired; see `IdempotencyStore`."""
        with self._lock:
            return self._pruned(now)

    def _end(self, key_id: str, old: KeyRecord, execution: Execution | None, now: float, *, effects: bool) -> None:
        ended = None if execution is None else settled(execution, effects=effects)
        if ended is None:
            self._forget(key_id)
            return
        self._records[key_id] = replace(old, state=ended.state, outcome=ended.outcome, expires_at=old.end_of_life(now))

    def _pruned(self, now: float) -> int:
        expired = [key_id for key_id, record in self._records.items() if record.expired(now)]
        for key_id in expired:
            self._forget(key_id)
        return len(expired)

    def _forget(self, key_id: str) -> None:
        record = self._records.pop(key_id, None)
        if record is not None:
            del self._ids[record.token]
