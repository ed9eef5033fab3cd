"""Idempotency keys: the stored record, its meaning for a repeated call, and the store.

Source: tool pattern library, 9.1 (re-invocation with the same arguments and idempotency key yields the same result and
no second side effect). A key is begun before its tool starts, and finished with the outcome of the run:

    begin ── Fresh ──> the tool runs ── finish ──> succeeded: Stored, until its time to live ends
                                              ├──> failed without an effect: the key is free again
                                              └──> failed, effect unknown: Unknown, until a person settles it
    begun and not finished: Running while the tool may still run, then Unknown, until a person settles it
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

LASTING: Final = 60.0  # If a tool has no timeout, its unfinished run counts as crashed after this many seconds.


class IdempotencyKey(NamedTuple):
    """An idempotency key with its owner and tool, because tenants, subjects and tools may use equal texts as keys."""

    tenant: str  # The issuer of the subject.
    subject: str
    tool: str
    major: str  # The tool's major version.
    key: str  # The session's key, or the derived one.

    @classmethod
    def of(cls, entry: Tool, *, tenant: str, subject: str, key: str) -> Self:
        """Return the full key of a call: the key text with tenant, subject, tool and the tool's major version."""
        return cls(tenant, subject, entry.name, (entry.version or "").partition(".")[0], key)

    @property
    def id(self) -> str:
        """The digest of the key's five fields."""
        return digest(canonical(list(self)))


class NotBegunError(PdpError):
    """A run cannot be finished or settled, because its key was not begun or is already finished."""

    code = "idempotency.not_begun"


class Fresh(NamedTuple):
    """The key was free and now belongs to the caller, who runs the tool once and then finishes the key (`record`)."""

    record: KeyRecord


class Stored(NamedTuple):
    """The call ran before with the same arguments. `execution` is the stored outcome, whose `started` is False."""

    execution: Execution
    approval_id: str | None


class Conflict(NamedTuple):
    """The key was used for a call with other arguments."""


class Running(NamedTuple):
    """Another call with the same key and arguments may still be running."""

    approval_id: str | None


class Unknown(NamedTuple):
    """An earlier call with the key has an unknown outcome, so the tool does not run again."""

    execution: Execution | None  # The failure of the run; None if the run never ended, as after a crash.
    approval_id: str | None


Known = Stored | Conflict | Running | Unknown
"""The status of a key that is not free."""

Begun = Fresh | Known
"""The result of `begin`. The tool may run only with `Fresh`."""


class ApprovalUse(NamedTuple):
    """A change to make in the transaction that takes the key, such as using up the approval `id`."""

    id: str | None
    consume: Callable[[Transaction | None], object]  # Makes the change, or raises. Gets None from stores in memory.


class KeyState(StrEnum):
    """The state of an idempotency key in the store."""

    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The stored record of an idempotency key. Times are seconds since 1970.

    If a result is not JSON or larger than 1 MiB, a failure is stored in its place.
    """

    id: str
    names: str  # The parts of the key as JSON.
    arguments_digest: str
    state: KeyState
    token: str  # The id of this run.
    started_at: float
    running_until: float
    ttl: float | None
    expires_at: float | None = None
    approval_id: str | None = None
    outcome: str | None = None  # JSON: `{"result": ...}` or `{"failure": {code, message, details}}`.

    @property
    def key(self) -> IdempotencyKey:
        """The idempotency key that this record belongs to."""
        return IdempotencyKey(*orjson.loads(self.names))

    def expired(self, now: float) -> bool:
        """Return whether the key is free again, after its time to live. An unknown outcome never expires."""
        return self.state is KeyState.FINISHED and self.expires_at is not None and now >= self.expires_at

    def settleable(self, now: float) -> bool:
        """Return whether the outcome of the run is unknown, so that a person may settle it."""
        return self.state is KeyState.UNKNOWN or (self.state is KeyState.STARTED and now >= self.running_until)

    def ended(self, execution: Execution, now: float, *, effects: bool = True) -> KeyRecord | None:
        """Return the record with the run's outcome, or None to free the key after a failure that had no effect."""
        state, failure = KeyState.FINISHED, execution.failure
        if failure is not None:
            effect = failure.details.get("effect")
            if not execution.started or not effects or effect == "none":
                return None
            state = KeyState.FINISHED if effect == "done" else KeyState.UNKNOWN
        expires_at = None if self.ttl is None else now + self.ttl
        return replace(self, state=state, outcome=_outcome_text(execution), expires_at=expires_at)

    def meaning(self, arguments_digest: str, now: float) -> Known | None:
        """Return the status of the key for a call with these arguments; None for a free key. Raises as `execution`."""
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
        """Return the stored outcome. Raise `StoreError` if the outcome cannot be read."""
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
    """The records of idempotency keys, within one transaction of their store."""

    transaction: Transaction | None  # Other stores of the same database can join it. None in memory.

    def get(self, key_id: str) -> KeyRecord | None:
        """Return the record of a key, or None. Lock it until the end of the transaction."""

    def add(self, record: KeyRecord) -> bool:
        """Store a new record. Return False if the key already has a record."""

    def put(self, key_id: str, record: KeyRecord | None) -> None:
        """Replace the record of a key, or delete it if `record` is None."""


class IdempotencyStore(ABC):
    """A thread-safe store of idempotency keys. Each method is one atomic step, and may raise `StoreError`.

    Times are seconds since 1970 of the system clock, not of the session.
    """

    blocking: bool  # Whether the methods wait for a disk or a network.

    @abstractmethod
    def read(self, key_id: str) -> KeyRecord | None:
        """Return the committed record of a key, or None."""

    @abstractmethod
    def unknown(self, now: float) -> Sequence[KeyRecord]:
        """Return the records of runs that a person may settle, in the order in which they began."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[KeyRows]:
        """Return a transaction. It commits at its end and rolls back on any exception."""

    @abstractmethod
    def prune(self, now: float) -> int:
        """Delete records whose time to live has ended; their keys are already free. Return how many."""

    def look(self, key: IdempotencyKey, arguments_digest: str, now: float) -> Known | None:
        """Return the status of a key for a call, without taking the key. None means that the key is free."""
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
        """Take a free key for a call (`Fresh`), or return the status of a key that is not free.

        The outcome is stored for `ttl` seconds; None means for ever. An unfinished run counts as crashed after
        `lasting` seconds. `approval` is used up in the same transaction. `token` (default: random) identifies the run.
        """
        # This check needs no lock, and most calls with a known key are replays.
        status = self.look(key, arguments_digest, now)
        if status is not None:
            return status
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
                # In PostgreSQL, another run may free the key between the two statements, so they are repeated.
                stored = rows.get(record.id)
                if stored is not None:
                    status = stored.meaning(arguments_digest, now)
                    if status is not None:
                        return status
                    rows.put(record.id, None)
            if approval is not None:
                approval.consume(rows.transaction)
        return Fresh(record)

    def finish(self, record: KeyRecord, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Store the outcome of the run that began with `record`, or free the key if the run had no effect.

        If the tool has no `effects`, any failure frees the key. Raises `NotBegunError` for an unknown or finished run.
        """
        with self.transaction() as rows:
            if rows.get(record.id) != record:
                raise NotBegunError("the run was not begun or is already finished")
            rows.put(record.id, record.ended(execution, now, effects=effects))

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Store the outcome that a person found out for an unknown run. None, for no effect, frees the run's key.

        Raises `NotBegunError` if the key is free or finished, or if the tool may still be running.
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
        message = f"the tool already ran with this idempotency key, but its result could not be stored: {why}"
        failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "done"})
    details = failure.details
    try:
        check_json(details)
    except JsonValueError:
        details = {"effect": details["effect"]} if isinstance(details.get("effect"), str) else {}
    message = failure.message.encode(errors="backslashreplace").decode()
    return orjson.dumps({"failure": {"code": failure.code, "message": message, "details": details}}).decode()
