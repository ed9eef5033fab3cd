"""Reads and searches the audit stream in a database.

A search reads at most 50,000 events, because an index would slow down each append. Its result says where the next
search continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Connection, Select, func, literal, select

from pdp.clock import to_milliseconds
from pdp.errors import AuditError
from pdp.stores.sql.database import Database
from pdp.stores.sql.tables import audit, requests, searchable

REJECTED: Final = "REJECTED"
"""The column `verdict` of a call that a check rejected before the policy could decide."""

SEARCHED: Final = 50_000
"""The largest number of events that one search reads."""
# The times of events increase with their numbers, but the clocks of processes may differ by this many seconds.
_CLOCKS_DIFFER: Final = 3600
_PAGE: Final = 1000
_COUNTED: Final = 20_000  # The largest number of events that are counted.
# A decision and the other events with its id have at most this many events between them.
_NEAR: Final = 100
_FAR: Final = 10_000
_OF_ONE: Final = 200  # The largest number of events of one approval or decision.
_BARS: Final = 60
# Lengths of the start of a time: days, hours, ten minutes, minutes, seconds.
_SPANS: Final = ((10, 86_400), (13, 3600), (15, 600), (16, 60), (19, 1))


class AuditRow(NamedTuple):
    """A stored audit event: the event as JSON (`line`), and columns that queries use, which `of` computes."""

    seq: int
    type: str
    approval_id: str | None
    line: str
    time: str | None = None
    verdict: str | None = None
    tool: str | None = None
    codes: str | None = None
    subject: str | None = None
    run_id: str | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any], seq: int, line: str) -> AuditRow:
        kind = event["type"]
        verdict = codes = None
        if kind.endswith(".dispatch"):
            verdict = event.get("verdict") or (None if event.get("rejection") is None else REJECTED)
            codes = " ".join(event.get("codes", ())).replace("\0", "\ufffd")
        tool, subject, run_id = event.get("tool_name"), event.get("subject"), event.get("run_id")
        return cls(
            seq, kind, event.get("approval_id") if kind.startswith("approval.") else None, line, event["time"],
            None if verdict is None else str(verdict),
            None if tool is None else searchable(tool),
            codes,
            None if subject is None else searchable(subject),
            None if run_id is None else searchable(run_id),
        )  # fmt: skip


class Wanted(NamedTuple):
    """The decisions that a search selects. `since` and `until` are times with milliseconds; `until` is excluded.

    With `every`, a search selects all events and not only decisions.
    """

    verdict: str | None = None
    tool: str | None = None
    code: str | None = None
    subject: str | None = None
    run_id: str | None = None
    since: str | None = None
    until: str | None = None
    every: bool = False

    def conditions(self) -> list[ColumnElement[bool]]:
        columns = audit.c
        codes = literal(" ") + columns.codes + " "
        texts = {"verdict": self.verdict, "tool": self.tool, "subject": self.subject, "run_id": self.run_id}
        return [
            *([] if self.every else [columns.verdict.is_not(None)]),
            *(columns[name] == searchable(text) for name, text in texts.items() if text is not None),
            *([] if self.code is None else [codes.contains(f" {searchable(self.code)} ", autoescape=True)]),
            *([] if self.since is None else [columns.time >= self.since]),
            *([] if self.until is None else [columns.time < self.until]),
        ]


class Found(NamedTuple):
    """A page of events, the newest first.

    Attributes:
        rows: the events.
        older: the number before which the next page continues; None if there are no older events.
        back_to: the time of the oldest event that was searched; None if there is no event.
    """

    rows: Sequence[AuditRow]
    older: int | None
    back_to: str | None


class EventReader:
    """Base class of the audit stream in a database, with all methods that read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lines(self, after: int, limit: int, *, approvals_only: bool = False) -> Sequence[AuditRow]:
        """Return up to `limit` events, or approval events only, after number `after` (-1 for the first)."""
        query = select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(limit)
        if approvals_only:
            query = query.where(audit.c.approval_id.is_not(None))
        with self._database.read() as connection:
            return [AuditRow(*row) for row in connection.execute(query)]

    def page(self, wanted: Wanted, after: int, limit: int) -> tuple[Sequence[AuditRow], int]:
        """Return up to `limit` events after `after`, oldest first, and the number after which the next page begins."""
        with self._database.read() as connection:
            start, _, end = self._window(connection, wanted, after=after)
            if start >= end:
                return [], after
            end = min(end, start + SEARCHED)
            query = _within(select(audit), wanted, start, end).order_by(audit.c.seq).limit(limit)
            rows = [AuditRow(*row) for row in connection.execute(query)]
        return rows, rows[-1].seq if len(rows) == limit else max(after, end - 1)

    def stored(
        self, checked: Callable[[bytes], dict[str, Any]], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield lines, each with its checked event. Raise `AuditError` if the columns differ from the event."""
        after, last = -1, -2
        while last != after:
            after = max(last, after)
            rows, last = self.page(Wanted(**wanted, every=True), after, _PAGE)
            for row in rows:
                event = checked(row.line.encode())
                if row != row.of(event, event["seq"], row.line):
                    raise AuditError(f"event {row.seq}: the columns differ from the event's line")
                yield row.line.encode(), event

    def first_kept(self) -> int:
        """Return the number of the last event, or of an earlier one if its request is recorded."""
        query = select(func.min(requests.c.seq)).where(requests.c.expires_at > time.time())
        with self._database.read() as connection:
            recorded: int | None = connection.execute(query).scalar()
        return self.last_seq() if recorded is None else min(recorded, self.last_seq())

    def last_seq(self) -> int:
        """Return the number of the last event, or -1 if the stream is empty."""
        with self._database.read() as connection:
            last: int | None = connection.execute(select(func.max(audit.c.seq))).scalar()
        return -1 if last is None else last

    def search(self, wanted: Wanted, limit: int, *, before: int | None = None, after: int = -1) -> Found:
        """Return up to `limit` events, the newest first, with numbers less than `before` and greater than `after`."""
        with self._database.read() as connection:
            start, low, end = self._window(connection, wanted, before, after)
            query = _within(select(audit), wanted, low, end).order_by(audit.c.seq.desc()).limit(limit + 1)
            rows = [AuditRow(*row) for row in connection.execute(query)]
            if len(rows) > limit:
                return Found(rows[:limit], rows[limit - 1].seq, rows[limit - 1].time)
            return Found(rows, low if low > start else None, _time_at(connection, low))

    def counts(self, wanted: Wanted) -> dict[str, dict[str, int]]:
        """Return how many of the newest decisions each part of the time has, such as `2026-07-01T10`, by verdict."""
        with self._database.read() as connection:
            _, low, end = self._window(connection, wanted)
            low = max(low, end - _COUNTED)
            first, last = _time_at(connection, low), _time_at(connection, end - 1)
            length = _span(max(wanted.since or "", first or ""), wanted.until or last)
            start = func.substr(audit.c.time, 1, length)
            query = _within(select(start, audit.c.verdict, func.count()), wanted._replace(every=False), low, end)
            return _counted(connection, query.group_by(start, audit.c.verdict).order_by(start))

    def counts_of_tools(self, wanted: Wanted) -> dict[str, dict[str, int]]:
        """Return how many decisions each tool has, by verdict, among the newest 50,000 events."""
        columns = audit.c
        with self._database.read() as connection:
            _, low, end = self._window(connection, wanted)
            query = _within(select(columns.tool, columns.verdict, func.count()), wanted, low, end)
            query = query.where(columns.tool.is_not(None)).group_by(columns.tool, columns.verdict)
            return _counted(connection, query)

    def of_approval(self, approval_id: str) -> Sequence[AuditRow]:
        """Return the first 200 events of an approval."""
        if not approval_id.isascii() or "\0" in approval_id:
            return []
        query = select(audit).where(audit.c.approval_id == approval_id).order_by(audit.c.seq).limit(_OF_ONE)
        with self._database.read() as connection:
            return [AuditRow(*row) for row in connection.execute(query)]

    def of_decision(self, event: Mapping[str, Any]) -> Sequence[AuditRow]:
        """Return the other events with the event's `decision_id`, such as the result of a decision."""
        decision, seq = event.get("decision_id"), event["seq"]
        if decision is None:
            return []
        before, later = (_NEAR, _FAR) if event["type"].endswith(".dispatch") else (_FAR, _NEAR)
        near = audit.c.seq.between(max(0, seq - before), seq + later), audit.c.seq != seq
        text = f'"decision_id":{orjson.dumps(decision).decode()}'
        query = select(audit).where(*near, audit.c.line.contains(text, autoescape=True)).order_by(audit.c.seq)
        with self._database.read() as connection:
            found = [AuditRow(*row) for row in connection.execute(query.limit(_OF_ONE))]
        return [row for row in found if orjson.loads(row.line).get("decision_id") == decision]

    def _window(
        self, connection: Connection, wanted: Wanted, before: int | None = None, after: int = -1
    ) -> tuple[int, int, int]:
        """Return the first number that can match, and the first and the end of the numbers to search."""
        # SQLite would read the whole table for both numbers in one query.
        last = connection.execute(select(func.max(audit.c.seq))).scalar()
        first = connection.execute(select(func.min(audit.c.seq))).scalar() if after < 0 else 0
        end = 0 if last is None else last + 1
        start = first or 0 if wanted.since is None else _seq_at(connection, end, wanted.since, -_CLOCKS_DIFFER)
        start = max(start, after + 1)
        if wanted.until is not None:
            end = _seq_at(connection, end, wanted.until, _CLOCKS_DIFFER)
        end = end if before is None else max(0, min(end, before))
        return start, max(start, end - SEARCHED), end


def _within(query: Select[Any], wanted: Wanted, low: int, end: int) -> Select[Any]:
    return query.where(audit.c.seq >= low, audit.c.seq < end, *wanted.conditions())


def _counted(connection: Connection, query: Select[Any]) -> dict[str, dict[str, int]]:
    """Return the rows of a query for a name, a verdict and a number, by name and verdict."""
    counted: dict[str, dict[str, int]] = {}
    for name, verdict, number in connection.execute(query):
        counted.setdefault(name, {})[verdict] = number
    return counted


def _time_at(connection: Connection, seq: int) -> str | None:
    query = select(audit.c.time).where(audit.c.seq >= seq).order_by(audit.c.seq).limit(1)
    time: str | None = connection.execute(query).scalar()
    return time


def _seq_at(connection: Connection, end: int, time: str, seconds: int) -> int:
    """Return the number of the first event at this time plus `seconds`, or `end`."""
    wanted = to_milliseconds(datetime.fromisoformat(time).timestamp() + seconds)
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        if (_time_at(connection, middle) or "") < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _span(first: str | None, last: str | None) -> int:
    """Return the length of the start of a time so that a chart has at most 60 bars, or days."""
    try:
        seconds = datetime.fromisoformat(last or "").timestamp() - datetime.fromisoformat(first or "").timestamp()
    except ValueError:
        return _SPANS[0][0]
    return next(length for length, span in reversed(_SPANS) if seconds / span <= _BARS or span == _SPANS[0][1])
