"""The stream of events in a database, which several processes append to.

What comes while a transaction runs is written by the next one, all of it together. The stream ends at the row with the
largest number, which every transaction reads anew, under a lock, as another process may have appended.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select

from pdp.audit.chain import GENESIS, AuditEvent, AuditLog
from pdp.audit.verify import checked_event
from pdp.errors import AuditError, StoreError
from pdp.stores.sql.database import Database
from pdp.stores.sql.tables import audit

_log = logging.getLogger("pdp.audit")

# Given to the driver as they are: compiling them would take twice the time of a small transaction.
_LOCK: Final = f"SELECT pg_advisory_xact_lock({0x7064705F61756400})"  # no other program has this number
_LAST: Final = "SELECT seq, line FROM pdp_audit ORDER BY seq DESC LIMIT 1"
_INSERT: Final = "INSERT INTO pdp_audit (seq, type, approval_id, line) VALUES (%s, %s, %s, %s)"
_IN_A_ROW: Final = 200  # of so many transactions of an event loop, one is the thread's
_EVIDENCE: Final = "see `pdp audit verify`; keep the database as evidence, and start again with a new one"


class AuditRow(NamedTuple):
    """One event: its number, its type, the approval that it is a step of, if any, and the event itself as JSON."""

    seq: int
    type: str
    approval_id: str | None
    line: str

    @classmethod
    def of(cls, event: Mapping[str, Any], line: str) -> AuditRow:
        """Return the row of a chained event."""
        kind = event["type"]
        return cls(event["seq"], kind, event.get("approval_id") if kind.startswith("approval.") else None, line)


class _End(NamedTuple):
    seq: int
    hash: str
    line: str | None


_Waiting = tuple["Sequence[AuditEvent]", Future[None]]
_Done = asyncio.Future[Future[None] | None]  # of an event loop: recorded, or handed on to the thread
_Soon = tuple["Sequence[AuditEvent]", _Done]
_EMPTY: Final = _End(-1, GENESIS, None)


class SqlAudit(AuditLog):
    """A stream in a database, open until `close`. Events are committed as by `Database.write`, not `durable`.

    One thread writes for all others of its process. An event that cannot be written is not in the stream, unless the
    AuditError says that it may be: the database failed while it committed.
    """

    may_wait = True

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        super().__init__(key)
        self._database = database
        self._process = os.getpid()
        self._end = _EMPTY  # the last event that was seen committed
        self._waiting: list[_Waiting] = []
        self._soon: dict[asyncio.AbstractEventLoop, list[_Soon]] = {}  # what each writes itself, in its next round
        self._line = ""  # the one that was written last
        self._in_a_row = 0
        self._is_closed = False
        self._writer = ThreadPoolExecutor(1, "pdp-audit")

    def append(self, event: AuditEvent) -> None:
        """As `AuditLog.append`; not while this thread has a transaction on the same SQLite file open."""
        self._submit((event,)).result()

    def append_within(self, event: AuditEvent, transaction: object) -> None:
        """As `AuditLog.append_within`; the event becomes a part of a transaction on the same SQLite file."""
        own = isinstance(transaction, Connection) and self._database.owns(transaction)
        if not own or self._database.dialect != "sqlite":
            # In PostgreSQL the stream would be locked until that transaction ends, which may wait for who appends.
            self.append(event)
            return
        # Another transaction could not begin before this one ends.
        assert isinstance(transaction, Connection)  # noqa: S101 - see above
        cursor = transaction.connection.cursor()
        self._take_up(cursor)
        self._insert(cursor, self._rows((event,)))

    def offer(self, event: AuditEvent) -> Future[None]:
        """Have one event recorded; what is returned is done when it is, or has failed."""
        return self._submit((event,))

    async def aappend(self, *events: AuditEvent) -> None:
        """Async variant of `append`, in one transaction: all of the events are recorded, or none."""
        if self._database.dialect != "sqlite":
            await asyncio.wrap_future(self._submit(events))
            return
        self._check_process()
        loop = asyncio.get_running_loop()
        done: _Done = loop.create_future()
        with self._lock:
            soon = self._soon.setdefault(loop, [])
            soon.append((events, done))
        if len(soon) == 1:
            loop.call_soon(self._write_soon, loop)
        handed_on = await done
        if handed_on is not None:
            await asyncio.wrap_future(handed_on)

    def lines(self, after: int, limit: int, *, approvals_only: bool = False) -> Sequence[AuditRow]:
        """Return events after the one with the number `after` (-1: from the first), or those that approvals made."""
        query = select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(limit)
        if approvals_only:
            query = query.where(audit.c.approval_id.is_not(None))
        with self._database.read() as connection:
            return [AuditRow(*row) for row in connection.execute(query)]

    def last_seq(self) -> int:
        """Return the number of the last event; -1 when there is none."""
        with self._database.read() as connection:
            last: int | None = connection.execute(select(func.max(audit.c.seq))).scalar()
        return -1 if last is None else last

    def close(self) -> None:
        """Write what waits, and end. Appending afterwards is an AuditError."""
        if os.getpid() == self._process:
            self._is_closed = True
            self._writer.shutdown()

    def _submit(self, events: Sequence[AuditEvent]) -> Future[None]:
        self._check_process()
        done: Future[None] = Future()
        with self._lock:
            if not self._waiting:
                try:
                    self._writer.submit(self._write_waiting)
                except RuntimeError:
                    raise self._fault("is closed") from None
            self._waiting.append((events, done))
        return done

    def _write_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write on an event loop what has come in this round of it; the thread does where the database is held."""
        with self._lock:
            waiting = self._soon.pop(loop)
        # The thread has its turn now and then, as it also brings SQLite's log up to date; and it knows of a close.
        self._in_a_row = (self._in_a_row + 1) % _IN_A_ROW
        if self._in_a_row and not self._is_closed and self._written(waiting, self._database.write_at_once()):
            return
        for events, done in waiting:
            if not done.done():
                try:
                    done.set_result(self._submit(events))
                except AuditError as error:
                    done.set_exception(error)

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._written(waiting, self._cursor())

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._database.write(durable=False) as connection:
            yield connection.connection.cursor()

    def _written(self, waiting: Sequence[_Waiting | _Soon], transaction: AbstractContextManager[Any]) -> bool:
        """Write what waits, and say so to whoever does; False: nothing is tried, as the transaction has no cursor."""
        faults: list[AuditError | None] = []
        doubt = ""
        try:
            with transaction as cursor:
                if cursor is None:
                    return False
                waiting = [one for one in waiting if _is_wanted(one[1])]
                self._end = self._take_up(cursor)
                rows: list[AuditRow] = []
                for events, _ in waiting:
                    try:
                        rows += self._rows(events)
                        faults.append(None)
                    except AuditError as error:
                        faults.append(error)
                end = self._end
                if rows:
                    self._insert(cursor, rows)
                    end = _End(self._seq - 1, self._prev, rows[-1].line)
                    doubt = ", and may have the event or not"
            self._end = end
        except AuditError as error:
            faults = [error] * len(waiting)
        except StoreError as error:
            faults = [self._fault(f"cannot be appended to{doubt}: {error.message}", error.hint)] * len(waiting)
        except BaseException:  # noqa: BLE001 - whoever waits has to know
            _log.exception("events could not be recorded, which is a fault of the stream")
            faults = [self._fault(f"failed{doubt}; the log says how")] * len(waiting)
        _settle(waiting, faults)
        return True

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise self._fault("was opened before this process was forked", "open it again")

    def _take_up(self, cursor: Any) -> _End:
        """Lock the stream and take it up at its end, which is returned."""
        if self._database.dialect == "postgresql":
            cursor.execute(_LOCK)
        cursor.execute(_LAST)
        row = cursor.fetchone()
        end = _EMPTY if row is None else self._end_at(*row)
        if end.seq < self._end.seq:
            raise self._fault("has lost events that this process has seen", _EVIDENCE)
        self._seq, self._prev = end.seq + 1, end.hash
        return end

    def _end_at(self, seq: int, line: str) -> _End:
        if (seq, line) == (self._end.seq, self._end.line):
            return self._end
        try:
            event = checked_event(line.encode(), self._hash)
        except AuditError as error:
            raise self._fault(f"cannot be continued: {error.message}", _EVIDENCE) from error
        if event["seq"] != seq or seq == self._end.seq:
            raise self._fault("cannot be continued: its last event was changed", _EVIDENCE)
        return _End(seq, event["hash"], line)

    def _rows(self, events: Sequence[AuditEvent]) -> list[AuditRow]:
        """Chain events, and return their rows. AuditError: one cannot be written, and none of them is chained."""
        first, before, rows = self._seq, self._prev, []
        try:
            for event in events:
                self._record(event)
                rows.append(AuditRow.of({**event, "seq": self._seq - 1}, self._line))
        except AuditError:
            self._seq, self._prev = first, before
            raise
        return rows

    def _insert(self, cursor: Any, rows: list[AuditRow]) -> None:
        cursor.executemany(_INSERT if self._database.dialect == "postgresql" else _INSERT.replace("%s", "?"), rows)

    def _write(self, line: bytes, line_hash: str) -> None:  # noqa: ARG002 - as every stream does
        self._line = line.decode()

    def _fault(self, message: str, hint: str | None = None) -> AuditError:
        return AuditError(f"audit stream of {self._database.name} {message}", hint=hint)


def _is_wanted(done: Future[None] | _Done) -> bool:
    """Return whether somebody still waits, who can no longer give up."""
    return done.set_running_or_notify_cancel() if isinstance(done, Future) else not done.cancelled()


def _settle(waiting: Sequence[_Waiting | _Soon], faults: Sequence[AuditError | None]) -> None:
    for (_, done), failed in zip(waiting, faults, strict=True):
        if failed is None:
            done.set_result(None)
        elif not done.cancelled():
            done.set_exception(failed)
