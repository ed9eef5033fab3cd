"""What happens to approvals, in the order of the audit stream: read once in a process, for all who wait.

Of several processes, any may take a step on an approval; that it is in the stream is what all of them see. The event is
written first: for a moment the record may still be what it was.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pdp.service.requests import HttpError

if TYPE_CHECKING:
    from pdp.stores.sql.audit import AuditRow, SqlAudit

TICK: Final = 0.25  # seconds between two looks at the stream, while somebody waits
_PAGE: Final = 500
_REMEMBERED: Final = 1000  # events, at least a page; who is further behind reads the stream


class ApprovalFeed:
    """The steps of one tenant's approvals. For one event loop; `ending` ends every wait, and `most` bounds them."""

    def __init__(self, audit: SqlAudit, most: int, ending: asyncio.Event) -> None:
        self._audit = audit
        self._most = most
        self.ending = ending
        self._waiting: Counter[str] = Counter()
        self._events: list[AuditRow] = []
        self._since = 0  # `_events` has all after this one...
        self._last: int | None = None  # ...and up to this one
        self._look: asyncio.Task[None] | None = None

    @contextmanager
    def place(self, principal_id: str) -> Iterator[None]:
        """Take a place among those who wait, half of which one token may have; HttpError 503 where there is none."""
        if self._waiting.total() >= self._most or self._waiting[principal_id] >= max(1, self._most // 2):
            raise HttpError(503, "too many wait already", hint="try again", headers={"Retry-After": "5"})
        self._waiting[principal_id] += 1
        try:
            yield
        finally:
            self._waiting -= Counter((principal_id,))  # who has none left is forgotten

    async def end(self) -> int:
        """Return the number of the stream's last event, to wait from; -1 where there is none. Raises as `after`."""
        return await asyncio.to_thread(self._audit.last_seq)

    async def after(self, seq: int, seconds: float, approval_id: str | None = None) -> Sequence[AuditRow]:
        """Return some events after the one of this number, of one approval if stated: the first ones, in their order.

        Where there are none it waits for them, so many seconds at most, and returns none then. StoreError: the stream
        cannot be read.
        """
        if self._last is None:
            # Where the stream ends, and not where a client says: all others would wait for what comes after that.
            end = await self.end()
            if self._last is None:
                self._since = self._last = end
        if seq < self._since:
            old = await asyncio.to_thread(self._audit.lines, seq, _PAGE, approvals_only=True)
            if found := _of(old, approval_id):
                return found
        until = asyncio.get_running_loop().time() + seconds
        while True:
            new = _of(self._events[bisect_right(self._events, seq, key=attrgetter("seq")) :], approval_id)
            if new or self.ending.is_set() or asyncio.get_running_loop().time() >= until:
                return new
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._read_on(self._last))
            await asyncio.shield(self._look)

    async def close(self) -> None:
        """Wait for a look at the stream that is under way, which nobody else may do any more."""
        if self._look is not None:
            await asyncio.wait((self._look,))

    async def _read_on(self, last: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), TICK)
        new = await asyncio.to_thread(self._audit.lines, last, _PAGE, approvals_only=True)
        self._events += new
        self._last = new[-1].seq if new else last
        if len(self._events) > 2 * _REMEMBERED:
            self._since = self._events[-_REMEMBERED - 1].seq
            del self._events[:-_REMEMBERED]


def _of(events: Sequence[AuditRow], approval_id: str | None) -> Sequence[AuditRow]:
    return [event for event in events if approval_id in (None, event.approval_id)]
