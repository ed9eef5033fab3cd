"""The audit stream in a database, to which several processes append.

Events that arrive during a transaction are written together in the next one. The stream ends at the row with the
largest number. Every transaction locks and reads that row again, because another process may have appended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from sqlalchemy import Connection, delete, literal_column, select

from pdp.audit.archive import check_part, write_part
from pdp.audit.chain import GENESIS, AuditEvent, AuditLog
from pdp.audit.verify import ARCHIVED, ArchivedPart, Chain, anchored_part, checked_event
from pdp.clock import to_milliseconds
from pdp.errors import AuditError, StoreError
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import AuditRow, EventReader
from pdp.stores.sql.tables import audit

if TYPE_CHECKING:  # Most streams record no requests.
    from pdp.audit.requests import Requests

_log = logging.getLogger("pdp.audit")

# The statements are passed to the driver as text, because compiling them takes twice as long as a small transaction.
_LOCK: Final = f"SELECT pg_advisory_xact_lock({0x7064705F61756400})"  # No other program uses this lock number.
_LAST: Final = "SELECT seq, line FROM pdp_audit ORDER BY seq DESC LIMIT 1"
_INSERT: Final = (
    "INSERT INTO pdp_audit (seq, type, approval_id, line, time, verdict, tool, codes, subject, run_id)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_INSERT_REQUEST: Final = "INSERT INTO pdp_requests (seq, expires_at, sealed) VALUES (%s, %s, %s)"
_IN_A_ROW: Final = 200  # Of this many transactions, an event loop leaves one to the writer thread.
_ANCHORS: Final = 10  # The newest anchors. Two rotations at once may append them in another order.
_PART: Final = 50_000  # The largest number of events in a file.
_DELETED: Final = 2000  # The number of rows that one transaction deletes, which takes about 20 ms.
_PAUSE: Final = 0.002  # Between two such transactions, other threads write.
_EVIDENCE: Final = "run `pdp audit verify`, keep the database as evidence, and use a new database"
_KEY_FIRST: Final = f"check the key in audit_key_file or PDP_AUDIT_KEY; if it is right, {_EVIDENCE}"


class _End(NamedTuple):
    seq: int
    hash: str
    line: str | None


class _New(NamedTuple):
    row: AuditRow
    sealed: bytes | None  # The recorded request.


_Waiting = tuple["Sequence[AuditEvent]", Future[None]]
# The result is None if the event was recorded. Otherwise it is a future that the writer thread completes.
_Done = asyncio.Future[Future[None] | None]
_Soon = tuple["Sequence[AuditEvent]", _Done]
_EMPTY: Final = _End(-1, GENESIS, None)


class SqlAudit(EventReader, AuditLog):
    """An audit stream in a database. Its events survive a crash of the process, but perhaps not a power failure.

    One thread writes for all threads of its process. After a failed commit, an event may or may not be stored.

    Examples:
        >>> with Database.open("sqlite:///events.db", upgrade=True) as database:
        ...     log = SqlAudit(database, key=b"32 bytes or more of random data.")
        ...     log.append({"time": "2026-07-01T10:00:00.000Z", "type": "note"})
        ...     log.close()
    """

    may_wait = True

    def __init__(self, database: Database, key: bytes | None = None, requests: Requests | None = None) -> None:
        AuditLog.__init__(self, key)
        self._requests = requests
        self.seal = None if requests is None else requests.seal
        EventReader.__init__(self, database)
        self._process = os.getpid()
        self._end = _EMPTY  # The last committed event that this process has seen.
        self._waiting: list[_Waiting] = []
        # For each event loop, the events that it writes next.
        self._soon: dict[asyncio.AbstractEventLoop, list[_Soon]] = {}
        self._line = ""  # The line of the last event that was written.
        self._in_a_row = 0
        self._is_closed = False
        self._writer = ThreadPoolExecutor(1, "pdp-audit")

    def append(self, event: AuditEvent) -> None:
        """Append an event. Do not call this method while the same thread has a transaction on the same SQLite file."""
        self._submit((event,)).result()

    def check(self) -> None:
        """Raise `AuditError` if no event can be appended, for example because the stream has another key."""
        self._submit(()).result()

    def append_within(self, event: AuditEvent, transaction: object) -> None:
        """Append an event, in `transaction` if its database is the same SQLite file, else in a separate transaction."""
        is_own = isinstance(transaction, Connection) and self._database.owns(transaction)
        if not is_own or self._database.dialect != "sqlite":
            # In PostgreSQL, a separate transaction writes the event: otherwise the stream would stay locked until the
            # end of the given transaction, which could deadlock.
            self.append(event)
            return
        # In SQLite, the given transaction writes the event, because no other transaction can begin before it ends.
        assert isinstance(transaction, Connection)  # noqa: S101 - checked by `is_own` above
        cursor = transaction.connection.cursor()
        self._lock_end(cursor)
        self._insert(cursor, self._rows((event,)))

    def offer(self, event: AuditEvent) -> Future[None]:
        """Queue an event. The returned future ends when the event is recorded, or with an `AuditError`."""
        return self._submit((event,))

    async def aappend(self, *events: AuditEvent) -> None:
        """Append events in one transaction, so that all events are recorded or no event is."""
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
        queued = await done
        if queued is not None:
            await asyncio.wrap_future(queued)

    def link_fault(self, seq: int) -> str | None:
        """Return why the event `seq` does not continue the chain of the event before it; None if it does."""
        last: tuple[int, str] | None = None if seq else (-1, GENESIS)
        for row in self.lines(seq - 2, 2):
            if row.seq > seq:
                break
            try:
                event = checked_event(row.line.encode(), self._hash)
            except AuditError as error:
                return f"event {row.seq}: {error.message}"
            if row != AuditRow.of(event, event["seq"], row.line):
                return f"event {row.seq}: the columns differ from the event's line"
            if row.seq == seq and last != (seq - 1, event["prev_hash"]) and not self._is_anchored(row, event):
                return "earlier events were removed, inserted or moved"
            last = event["seq"], event["hash"]
        return None if last is not None and last[0] == seq else "the event is missing"

    def _is_anchored(self, row: AuditRow, event: dict[str, Any]) -> bool:
        """Return whether an event is the first one in the database, and a file has the events before it."""
        part = self._newest_part() if self.lines(-1, 1) == [row] else None
        return part is not None and part.precedes(event)

    def _newest_part(self) -> ArchivedPart | None:
        newest = select(audit.c.line).where(audit.c.type == literal_column(f"'{ARCHIVED}'"))
        with self._database.read() as connection:
            lines = connection.execute(newest.order_by(audit.c.seq.desc()).limit(_ANCHORS)).scalars().all()
        parts = [anchored_part(checked_event(line.encode(), self._hash)) for line in lines]
        return max(filter(None, parts), key=lambda part: part.last, default=None)

    def rotate(self, folder: Path, before: str | None = None) -> Iterator[ArchivedPart]:
        """Move the oldest events to files in a folder, and yield each file once its events are deleted.

        The last event stays, and so do events from the first one at or after `before`, or with a recorded request. An
        event anchors a file before the file's events are deleted, so that the next call can go on after a crash. Of two
        calls at once, one may raise an `AuditError`.
        """
        end = self.first_kept()
        while rows := self.lines(-1, 1):
            part, first = self._newest_part(), rows[0].seq
            if part is None or part.last < first:
                after = (-1, GENESIS) if part is None else (part.last, part.hash)
                try:
                    part = write_part(folder, islice(self._old_events(after, end, before or "~"), _PART))
                except AuditError as error:
                    if self.lines(-1, 1) == rows:
                        raise
                    raise self._fault("is being rotated by another process", "try again later") from error
                if part is None:
                    return
                reason = f"events {part.first} to {part.last} are in {part.file}"
                anchor = {"time": to_milliseconds(time.time()), "type": ARCHIVED, "reason": reason}
                self.append(cast("AuditEvent", {**anchor, "archive": part._asdict()}))
            check_part(folder, part)
            for at in range(first, part.last + 1, _DELETED):
                with self._database.write(durable=False) as connection:
                    rows_at = audit.c.seq.between(at, min(at + _DELETED - 1, part.last))
                    connection.execute(delete(audit).where(rows_at))
                time.sleep(_PAUSE)
            yield part

    def _old_events(self, after: tuple[int, str], end: int, before: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for line, event in self.stored(Chain(self._hash, after).check, {}):
            if event["seq"] >= end or event["time"] >= before:
                return
            yield line, event

    def close(self) -> None:
        """Write the queued events and close the stream. Later appends raise `AuditError`."""
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
        """Write the events that wait in this event loop. If the database is locked, let the writer thread write."""
        with self._lock:
            waiting = self._soon.pop(loop)
        # The writer thread must write from time to time, because it also checkpoints SQLite's log and detects a close.
        self._in_a_row = (self._in_a_row + 1) % _IN_A_ROW
        if self._in_a_row and not self._is_closed and self._write_all(waiting, self._database.write_at_once()):
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
        self._write_all(waiting, self._cursor())

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._database.write(durable=False) as connection:
            yield connection.connection.cursor()

    def _write_all(self, waiting: Sequence[_Waiting | _Soon], transaction: AbstractContextManager[Any]) -> bool:
        """Write queued events and complete their futures. Return False if the transaction could not begin at once."""
        faults: list[AuditError | None] = []
        doubt = ""
        try:
            with transaction as cursor:
                if cursor is None:
                    return False
                waiting = [entry for entry in waiting if _is_wanted(entry[1])]
                self._end = self._lock_end(cursor)
                rows: list[_New] = []
                for events, _ in waiting:
                    try:
                        rows += self._rows(events)
                        faults.append(None)
                    except AuditError as error:
                        faults.append(error)
                end = self._end
                if rows:
                    self._insert(cursor, rows)
                    end = _End(self._seq - 1, self._prev, rows[-1].row.line)
                    doubt = " (the event may be stored)"
            self._end = end
        except AuditError as error:
            faults = [error] * len(waiting)
        except StoreError as error:
            faults = [self._fault(f"cannot be appended to{doubt}: {error.message}", error.hint)] * len(waiting)
        except BaseException:  # noqa: BLE001 - every waiting caller needs the error
            _log.exception("events could not be recorded: the audit stream failed")
            faults = [self._fault(f"failed{doubt}; see the log")] * len(waiting)
        _settle(waiting, faults)
        return True

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise self._fault("was opened before this process was forked", "open it again")

    def _lock_end(self, cursor: Any) -> _End:
        """Lock the stream and return its last event, after which the next event is chained."""
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
            raise self._fault(f"cannot be continued: {error.message}", error.hint or _KEY_FIRST) from error
        if event["seq"] != seq or seq == self._end.seq:
            raise self._fault("cannot be continued: its last event was changed", _EVIDENCE)
        return _End(seq, event["hash"], line)

    def _rows(self, events: Sequence[AuditEvent]) -> list[_New]:
        """Chain events and return them as rows. If an event cannot be written, raise `AuditError` and chain none."""
        first, before, rows = self._seq, self._prev, []
        try:
            for event in events:
                self._record(event)
                sealed = cast("dict[str, Any]", event).get("sealed")
                rows.append(_New(AuditRow.of(event, self._seq - 1, self._line), sealed))
        except AuditError:
            self._seq, self._prev = first, before
            raise
        return rows

    def _insert(self, cursor: Any, rows: list[_New]) -> None:
        mark = "%s" if self._database.dialect == "postgresql" else "?"
        cursor.executemany(_INSERT.replace("%s", mark), [new.row for new in rows])
        if self._requests is not None and (sealed := [new for new in rows if new.sealed is not None]):
            expires = time.time() + self._requests.days * 86_400
            records = [(new.row.seq, expires, new.sealed) for new in sealed]
            cursor.executemany(_INSERT_REQUEST.replace("%s", mark), records)

    def _write(self, line: bytes, line_hash: str) -> None:  # noqa: ARG002 - signature of the base class
        self._line = line.decode()

    def _fault(self, message: str, hint: str | None = None) -> AuditError:
        return AuditError(f"audit stream of {self._database.name} {message}", hint=hint)


def _is_wanted(done: Future[None] | _Done) -> bool:
    """Return whether the caller of an append still waits, and keep a waiting thread from cancelling the append."""
    return done.set_running_or_notify_cancel() if isinstance(done, Future) else not done.cancelled()


def _settle(waiting: Sequence[_Waiting | _Soon], faults: Sequence[AuditError | None]) -> None:
    for (_, done), failed in zip(waiting, faults, strict=True):
        if failed is None:
            done.set_result(None)
        elif not done.cancelled():
            done.set_exception(failed)
