"""Stores in memory, for the lifetime of one process."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pdp.errors import StoreFullError
from pdp.stores.actions import Action, ActionState, ActionStore
from pdp.stores.approvals import Approval, ApprovalState, Transaction
from pdp.stores.grants import GrantState, LastingGrant
from pdp.stores.keys import IdempotencyStore, KeyRecord, KeyRows, KeyState

Record = TypeVar("Record", Action, Approval, LastingGrant)

CAPACITY: Final = 100_000
"""The maximum number of records of a store in memory.

A deleted key or action could be used twice, so a full store of them rejects new records. A deleted approval allows no
call, so a full store of approvals drops the oldest.
"""

LASTING: Final = 24 * 3600.0
"""Seconds for which a full store keeps an action, or a finished key without a time to live."""


class MemoryIdempotency(IdempotencyStore):
    """Idempotency keys in memory. If there are 100,000 unexpired keys, `begin` raises `StoreFullError`.

    A full store first drops finished keys without a time to live, one day after their tool ended. Keys with an unknown
    outcome are never dropped.
    """

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = _MemoryKeyRows()

    def read(self, key_id: str) -> KeyRecord | None:
        return self._rows.get(key_id)

    def unknown(self, now: float) -> Sequence[KeyRecord]:
        with self._lock:
            return [record for record in self._rows.records.values() if record.settleable(now)]

    @contextmanager
    def transaction(self) -> Iterator[KeyRows]:
        with self._lock:
            self._rows.added = None
            try:
                yield self._rows
            except BaseException:
                if self._rows.added is not None:
                    self._rows.put(self._rows.added, None)
                raise

    def prune(self, now: float) -> int:
        with self._lock:
            return self._rows.prune(now)


class _MemoryKeyRows:
    def __init__(self) -> None:
        self.transaction: Transaction | None = None
        self.added: str | None = None
        self.records: dict[str, KeyRecord] = {}

    def get(self, key_id: str) -> KeyRecord | None:
        return self.records.get(key_id)

    def add(self, record: KeyRecord) -> bool:
        if record.id in self.records:
            return False
        if len(self.records) >= CAPACITY and not self.prune(record.started_at) and not self._forget(record.started_at):
            raise StoreFullError(
                f"the store in memory is full: none of its {CAPACITY} idempotency keys has expired",
                hint="set a ttl in the manifest entries, use a database, or settle keys with an unknown outcome",
            )
        self.records[record.id] = record
        self.added = record.id
        return True

    def put(self, key_id: str, record: KeyRecord | None) -> None:
        if record is None:
            del self.records[key_id]
        else:
            self.records[key_id] = record

    def prune(self, now: float) -> int:
        expired = [name for name, record in self.records.items() if record.expired(now)]
        for name in expired:
            self.put(name, None)
        return len(expired)

    def _forget(self, now: float) -> bool:
        """Delete the oldest finished key without a time to live that ended a day ago. Return False if there is none."""
        for name, record in self.records.items():
            if record.running_until + LASTING > now:
                break
            if record.state is KeyState.FINISHED and record.expires_at is None:
                self.put(name, None)
                return True
        return False


class _MemoryRecords(Generic[Record]):
    """The records of a store, such as actions, keyed by id, in the order of insertion."""

    blocking = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, Record] = {}

    def get(self, record_id: str) -> Record | None:
        return self._records.get(record_id)

    def replace(self, old: Record, new: Record, *, within: Transaction | None = None) -> bool:  # noqa: ARG002 - for databases
        with self._lock:
            if self._records.get(old.id) != old:
                return False
            self._records[old.id] = new
            return True


class MemoryActions(_MemoryRecords[Action], ActionStore):
    """Actions in memory, at most 100,000. `ids` returns the id of the nth action, from 1; by default a random id.

    A full store deletes the oldest action that is older than a day. It keeps approved actions: a commit may be running.
    """

    def __init__(self, *, ids: Callable[[int], str] | None = None) -> None:
        super().__init__()
        self._ids = ids
        self._by_key: dict[str, str] = {}

    def add(self, action: Action, key_id: str) -> Action:
        with self._lock:
            stored = self._by_key.get(key_id)
            if stored is not None:
                return self._records[stored]
            if len(self._records) >= CAPACITY:
                self._make_room(datetime.fromisoformat(action.created_at) - timedelta(seconds=LASTING))
            if self._ids is not None:
                action = replace(action, id=self._ids(len(self._records) + 1))
            self._records[action.id] = action
            self._by_key[key_id] = action.id
            return action

    def _make_room(self, before: datetime) -> None:
        for key_id, action_id in self._by_key.items():
            action = self._records[action_id]
            if datetime.fromisoformat(action.created_at) > before:
                break
            # An approved action is kept, because it may be running or its outcome may be unknown.
            if action.state is not ActionState.APPROVED:
                del self._records[action_id], self._by_key[key_id]
                return
        raise StoreFullError(f"the store in memory is full: it keeps {CAPACITY} actions", hint="use a database")

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        with self._lock:
            return [action for action in self._records.values() if state is None or action.state is state]


class MemoryApprovals(_MemoryRecords[Approval]):
    """Approvals in memory. Beyond 100,000 approvals, the oldest approvals are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.lasting = MemoryGrants()
        self._by_call: dict[str, list[str]] = {}

    def add(self, approval: Approval) -> Approval:
        with self._lock:
            for stored in self._of(approval.call_digest):
                if stored.state is ApprovalState.PENDING:
                    return stored
            self._records[approval.id] = approval
            self._by_call.setdefault(approval.call_digest, []).append(approval.id)
            if len(self._records) > CAPACITY:
                self._forget(next(iter(self._records)))
            return approval

    def list(
        self, *, call_digest: str | None = None, state: ApprovalState | None = None, subject: str | None = None
    ) -> Sequence[Approval]:
        with self._lock:
            approvals = list(self._records.values()) if call_digest is None else self._of(call_digest)
        return [each for each in approvals if state in (None, each.state) and subject in (None, each.subject)]

    def _of(self, call_digest: str) -> Sequence[Approval]:
        return [self._records[approval_id] for approval_id in self._by_call.get(call_digest, ())]

    def _forget(self, approval_id: str) -> None:
        call_digest = self._records.pop(approval_id).call_digest
        rest = self._by_call[call_digest]
        rest.remove(approval_id)
        if not rest:
            del self._by_call[call_digest]


class MemoryGrants(_MemoryRecords[LastingGrant]):
    """Lasting grants in memory. Beyond 100,000 grants, the oldest grants are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._by_scope: dict[str, list[str]] = {}

    def add(self, grant: LastingGrant) -> None:
        with self._lock:
            self._records[grant.id] = grant
            self._by_scope.setdefault(grant.scope, []).append(grant.id)
            if len(self._records) > CAPACITY:
                oldest = self._records.pop(next(iter(self._records)))
                rest = self._by_scope[oldest.scope]
                rest.remove(oldest.id)
                if not rest:
                    del self._by_scope[oldest.scope]

    def list(
        self, *, scope: str | None = None, state: GrantState | None = None, run_id: str | None = None
    ) -> Sequence[LastingGrant]:
        with self._lock:
            ids = [*self._records] if scope is None else self._by_scope.get(scope, ())
            grants = [self._records[grant_id] for grant_id in ids]
        return [each for each in grants if state in (None, each.state) and run_id in (None, each.run_id)]
