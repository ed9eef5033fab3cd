"""Idempotency keys: what is stored of a key, what that means for a call that comes with it, and the store.

Source: tool pattern library, 9.1 (re-invocation with the same arguments and idempotency key yields the same result and
no second side effect). A key is begun before its tool is started, and finished with the outcome of the run:

    begin ── Fresh ──> the tool runs ── finish ──> succeeded: Stored, until its time to live is over
                                              ├──> failed without an effect: free again
                                              └──> failed, effect unknown: Unknown, until a person settles it
    begun and not finished: Running while the tool may still run, then Unknown. Neither is ever run again by itself.

docs/execution.md has the table of what each outcome makes of its key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

import orjson

from pdp.decision import new_id
from pdp.errors import PdpError, StoreError
from pdp.json import MAX_BYTES, JsonValueError, canonical, check_json, digest
from pdp.manifest.model import Tool
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.approvals import Transaction

LASTING: Final = 60.0  # seconds after which a tool without time-out counts as crashed, when nothing more is heard of it


class IdempotencyKey(NamedTuple):
    """A key with its owner and its tool: equal texts of two tenants, subjects or tools have nothing in common.

    `tenant` is who issues subjects; `major` the tool's major version; `key` the session's text, or the derived one.
    """

    tenant: str
    subject: str
    tool: str
    major: str
    key: str

    @classmethod
    def of(cls, entry: Tool, *, tenant: str, subject: str, key: str) -> Self:
        """Return the key of a call of this entry."""
        return cls(tenant, subject, entry.name, (entry.version or "").partition(".")[0], key)

    @property
    def id(self) -> str:
        """A digest of all five."""
        return digest(canonical(list(self)))


class NotBegunError(PdpError):
    """There is no run to finish or to settle, or it was finished already."""

    code = "idempotency.not_begun"


class Fresh(NamedTuple):
    """The key is this caller's: run the tool once, then finish with the record."""

    record: KeyRecord


class Stored(NamedTuple):
    """It ran before, with the same arguments; `execution` is its outcome, and says that nothing was started now."""

    execution: Execution
    approval_id: str | None


class Conflict(NamedTuple):
    """The key stands for a call with other arguments."""


class Running(NamedTuple):
    """Another call with the same key and arguments runs, and still may."""

    approval_id: str | None


class Unknown(NamedTuple):
    """It was started before, and its outcome is unknown; it is not run again.

    `execution`: the failure that it ended with; None when it never ended, as after a crash.
    """

    execution: Execution | None
    approval_id: str | None


Known = Stored | Conflict | Running | Unknown
"""What is known of a key that is not free."""

Begun = Fresh | Known
"""What `begin` returns. Only `Fresh` lets a tool run."""


class ApprovalUse(NamedTuple):
    """An approval that is used up together with a key: both, or neither; `id` None: something else is done with it.

    `consume` does it or raises; it gets the transaction that the key is begun in, or None where keys are in memory.
    """

    id: str | None
    consume: Callable[[Transaction | None], object]


class KeyState(StrEnum):
    """Where a key stands."""

    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is stored of a key. Times are in seconds since 1970.

    `names` has the key's parts, for people; `token` is the run's own; `outcome` is `{"result": ...}` or
    `{"failure": {code, message, details}}`. A result that is not JSON of at most 1 MiB is stored as a failure.
    """

    id: str
    names: str
    arguments_digest: str
    state: KeyState
    token: str
    started_at: float
    running_until: float
    ttl: float | None
    expires_at: float | None = None
    approval_id: str | None = None
    outcome: str | None = None

    @property
    def key(self) -> IdempotencyKey:
        """The key that it is of."""
        return IdempotencyKey(*orjson.loads(self.names))

    def expired(self, now: float) -> bool:
        """Return whether its key is free again. Only a run with a known outcome expires."""
        return self.state is KeyState.FINISHED and self.expires_at is not None and now >= self.expires_at

    def settleable(self, now: float) -> bool:
        """Return whether a person may settle it."""
        return self.state is KeyState.UNKNOWN or (self.state is KeyState.STARTED and now >= self.running_until)

    def ended(self, execution: Execution, now: float, *, effects: bool = True) -> KeyRecord | None:
        """Return the record of a finished run; None when the key is free again. `effects`: the tool may have some."""
        state, failure = KeyState.FINISHED, execution.failure
        if failure is not None:
            effect = failure.details.get("effect")
            if not execution.started or not effects or effect == "none":
                return None
            state = KeyState.FINISHED if effect == "done" else KeyState.UNKNOWN
        expires_at = None if self.ttl is None else now + self.ttl
        return replace(self, state=state, outcome=_outcome_text(execution), expires_at=expires_at)

    def meaning(self, arguments_digest: str, now: float) -> Known | None:
        """Return what it means for a call with these arguments; None: the key is free again. Raises as `execution`."""
        if self.expired(now):
            return None
        if self.arguments_digest != arguments_digest:
            return Conflict()
        if self.state is KeyState.FINISHED:
            return Stored(self.execution(), self.approval_id)
        if self.state is KeyState.STARTED and now < self.running_until:
            return Running(self.approval_id)
        return Unknown(self.execution() if self.outcome else None, self.approval_id)

    def execution(self) -> Execution:
        """Return the outcome that is stored; StoreError where it cannot be read."""
        try:
            outcome = orjson.loads(self.outcome or "")
            if "failure" not in outcome:
                return Execution(result=outcome["result"], started=False)
            stored = outcome["failure"]
            failure = Failure(FailureCode(stored["code"]), stored["message"], stored["details"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"the outcome stored for the idempotency key {self.names} cannot be read",
                hint="another program changed it, or a newer release wrote it",
            ) from error
        return Execution(failure=failure, started=False)


class KeyRows(Protocol):
    """The records of a store within one transaction.

    `transaction`: for a store of the same database to take part in; None in memory.
    """

    transaction: Transaction | None

    def get(self, key_id: str) -> KeyRecord | None:
        """Return a record, locked until the end of the transaction."""

    def add(self, record: KeyRecord) -> bool:
        """Store a record unless its key has one, and return whether it was stored."""

    def put(self, key_id: str, record: KeyRecord | None) -> None:
        """Store a record in the place of the one that is there; None: delete it."""


class IdempotencyStore(ABC):
    """A store of keys. Safe to share between threads; each method is one atomic step, and raises StoreError.

    `blocking`: whether its methods wait for a disk or a network, so that an event loop should not call them itself.
    Times are seconds since 1970 of the clock on the wall, not the session's.
    """

    blocking: bool

    @abstractmethod
    def read(self, key_id: str) -> KeyRecord | None:
        """Return a record as it is committed."""

    @abstractmethod
    def unknown(self, now: float) -> Sequence[KeyRecord]:
        """Return the records that a person may settle, in the order of being begun."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[KeyRows]:
        """Return a transaction: committed at its end, rolled back on any exception."""

    @abstractmethod
    def prune(self, now: float) -> int:
        """Delete the results whose time to live is over, and return how many. They count as gone before as well."""

    def look(self, key: IdempotencyKey, arguments_digest: str, now: float) -> Known | None:
        """Return what `begin` would find, without beginning; None when the key is free."""
        record = self.read(key.id)
        return None if record is None else record.meaning(arguments_digest, now)

    def begin(
        self,
        key: IdempotencyKey,
        arguments_digest: str,
        *,
        ttl: float | None,
        now: float,
        lasting: float = LASTING,
        approval: ApprovalUse | None = None,
        token: str | None = None,
    ) -> Begun:
        """Take the key if it is free (`Fresh`); otherwise return what is known of it.

        A result is stored for `ttl` seconds from its finish on; None: for ever. After `lasting` seconds, for all its
        attempts, the tool counts as crashed. `approval` is used up in the same transaction. `token` names the run; a
        new one when absent.
        """
        # A replay, which is the most frequent case for a key that is known, takes no lock.
        known = self.look(key, arguments_digest, now)
        if known is not None:
            return known
        record = KeyRecord(
            id=key.id,
            names=canonical(list(key)).decode(),
            arguments_digest=arguments_digest,
            state=KeyState.STARTED,
            token=new_id() if token is None else token,
            started_at=now,
            running_until=now + lasting,
            ttl=ttl,
            approval_id=None if approval is None else approval.id,
        )
        with self.transaction() as rows:
            while not rows.add(record):
                # In PostgreSQL, whoever had the key may have freed it since.
                stored = rows.get(record.id)
                if stored is not None:
                    known = stored.meaning(arguments_digest, now)
                    if known is not None:
                        return known
                    rows.put(record.id, None)
            if approval is not None:
                approval.consume(rows.transaction)
        return Fresh(record)

    def finish(self, record: KeyRecord, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Store the outcome of the run that began with `record`, or free the key if the run had no effect.

        `effects`: whether the tool can have any; without, a failure always frees the key.

        NotBegunError: no such run was begun, or it is finished.
        """
        with self.transaction() as rows:
            if rows.get(record.id) != record:
                raise NotBegunError("no such run was begun, or it is finished")
            rows.put(record.id, record.ended(execution, now, effects=effects))

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Store the outcome of an unknown run that a person has found out; None: it had no effect, free the key.

        NotBegunError: the key is free, finished, or its tool may still run.
        """
        with self.transaction() as rows:
            record = rows.get(key.id)
            if record is None or not record.settleable(now):
                raise NotBegunError(f"the idempotency key {key.key!r:.60} has no run whose outcome is unknown")
            rows.put(record.id, None if execution is None else record.ended(execution, now))


def _outcome_text(execution: Execution) -> str:
    failure = execution.failure
    if failure is None:
        try:
            check_json(execution.result)
            text = orjson.dumps({"result": execution.result})
            if len(text) <= MAX_BYTES:
                return text.decode()
            why = f"it is larger than {MAX_BYTES} bytes"
        except (JsonValueError, orjson.JSONEncodeError) as error:
            why = f"it is not JSON ({error})"[:300]
        message = f"the tool ran under this idempotency key before, and its result could not be stored: {why}"
        failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "done"})
    details = failure.details
    try:
        check_json(details)
    except JsonValueError:
        details = {"effect": details["effect"]} if isinstance(details.get("effect"), str) else {}
    message = failure.message.encode(errors="backslashreplace").decode()
    return orjson.dumps({"failure": {"code": failure.code, "message": message, "details": details}}).decode()
