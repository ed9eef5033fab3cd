"""Distributes approval events to waiting requests. All requests of a tenant share one reader of the audit stream.

An event is written before the approval's record changes, so the record may still have the old state after the event.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Final

from pdp.service.errors import HttpError
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.events import AuditRow

TICK: Final = 0.25  # While a request waits, the stream is read once in this many seconds.
_PAGE: Final = 500
# The number of events kept in memory, at least one page. Earlier events are read from the stream.
_REMEMBERED: Final = 1000


class ApprovalFeed:
    """The approval events of one tenant. At most `most` requests can wait; the event `ending` ends all their waits."""

    def __init__(self, audit: SqlAudit, most: int, ending: asyncio.Event) -> None:
        self._audit = audit
        self._most = most
        self.ending = ending
        self._waiting: Counter[str] = Counter()
        self._events: list[AuditRow] = []
        self._since = 0  # `_events` has all approval events after this number.
        self._last: int | None = None  # `_events` has all approval events up to this number.
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def place(self, principal_id: str) -> Iterator[None]:
        """Admit a waiting request, or raise `HttpError` 503. One principal can have half of the waiting requests."""
        if self._waiting.total() >= self._most or self._waiting[principal_id] >= max(1, self._most // 2):
            raise HttpError(503, "too many waiting requests", hint="try again", headers={"Retry-After": "5"})
        self._waiting[principal_id] += 1
        try:
            yield
        finally:
            # Subtracting counters also removes principals whose count is zero.
            self._waiting -= Counter((principal_id,))

    async def end(self) -> int:
        """Return the number of the stream's last event, or -1 if the stream is empty. Raise StoreError on failure."""
        return await asyncio.to_thread(self._audit.last_seq)

    async def after(self, seq: int, seconds: float, approval_id: str | None = None) -> Sequence[AuditRow]:
        """Wait up to `seconds` for events after number `seq`. Return the first of them, or an empty list.

        With `approval_id`, only events of this approval count. Raises StoreError if the stream cannot be read.
        """
        if self._last is None:
            # All waiting requests share one position in the stream, so it starts at the stream's end and not at a
            # number that a client sent.
            end = await self.end()
            if self._last is None:
                self._since = self._last = end
        if seq < self._since:
            old = await asyncio.to_thread(self._audit.lines, seq, _PAGE, approvals_only=True)
            if old_events := _events_of(old, approval_id):
                return old_events
        until = asyncio.get_running_loop().time() + seconds
        while True:
            new = _events_of(self._events[bisect_right(self._events, seq, key=attrgetter("seq")) :], approval_id)
            if new or self.ending.is_set() or asyncio.get_running_loop().time() >= until:
                return new
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_on(self._last))
            await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Wait until the running read of the stream ends. After this call, no request may use the feed."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))

    async def _read_on(self, last: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), TICK)
        new = await asyncio.to_thread(self._audit.lines, last, _PAGE, approvals_only=True)
        self._events += new
        self._last = new[-1].seq if new else last
        if len(self._events) > 2 * _REMEMBERED:
            self._since = self._events[-_REMEMBERED - 1].seq
            del self._events[:-_REMEMBERED]


def _events_of(events: Sequence[AuditRow], approval_id: str | None) -> Sequence[AuditRow]:
    return [event for event in events if approval_id in (None, event.approval_id)]
