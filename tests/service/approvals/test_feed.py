"""Each reader of the feed of approval events gets every event once and in order. Several readers share one read."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from pdp.service.approvals.feed import ApprovalFeed
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import AuditRow

PATIENT = 600.0


class Watched(SqlAudit):
    """An audit stream that counts how often it is read."""

    looks = 0

    def lines(self, after: int, limit: int, *, approvals_only: bool = False) -> Sequence[AuditRow]:
        self.looks += 1
        return super().lines(after, limit, approvals_only=approvals_only)

    def add(self, first: int, last: int) -> None:
        """Append a grant event for each approval from `first` to `last`, and before each grant another event."""
        for number in range(first, last):
            self.append({"time": "", "type": "tool.look.dispatch"})
            self.append({"time": "", "type": "approval.granted", "approval_id": f"a{number}"})


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    for name, value in (("_PAGE", 4), ("_REMEMBERED", 4), ("TICK", 0.01)):
        monkeypatch.setattr(f"pdp.service.approvals.feed.{name}", value)
    with (
        Database.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True) as database,
        closing(Watched(database)) as audit,
    ):
        yield audit


async def read(feed: ApprovalFeed, seq: int, last: str) -> list[str]:
    """Return the approval ids of the events after `seq`, up to `last`."""
    told: list[str] = []
    while not told or told[-1] != last:
        events = await feed.after(seq, PATIENT)
        assert events
        told += [str(event.approval_id) for event in events]
        seq = events[-1].seq
    return told


async def test_feed_readers_get_each_event_once_from_any_start_number(audit: Watched) -> None:
    feed = ApprovalFeed(audit, 10, asyncio.Event())
    await asyncio.to_thread(audit.add, 0, 20)
    early = asyncio.create_task(read(feed, await feed.end(), "a49"))
    await asyncio.sleep(0)
    await asyncio.to_thread(audit.add, 20, 50)
    assert await early == [f"a{number}" for number in range(20, 50)]
    late = [asyncio.create_task(read(feed, seq, "a49")) for seq in (-1, 19, 80)]
    assert [await task for task in late] == [
        [f"a{number}" for number in range(first, 50)] for first in (0, 10, 40)
    ]  # fmt: skip


async def test_reader_can_wait_for_events_of_one_approval(audit: Watched) -> None:
    feed = ApprovalFeed(audit, 10, asyncio.Event())
    wait = asyncio.create_task(feed.after(await feed.end(), PATIENT, "a2"))
    await asyncio.sleep(0)
    await asyncio.to_thread(audit.add, 0, 4)
    assert [(event.seq, event.approval_id) for event in await wait] == [(5, "a2")]
    assert await feed.after(7, 0.05, "a2") == []


async def test_concurrent_feed_readers_share_reads_of_the_audit_stream(audit: Watched) -> None:
    feed = ApprovalFeed(audit, 10, asyncio.Event())
    assert await feed.after(-1, 0) == []
    waits = [asyncio.create_task(feed.after(-1, PATIENT)) for _ in range(50)]
    await asyncio.to_thread(audit.add, 0, 1)
    assert {tuple(await wait) for wait in waits} == {tuple(await waits[0])}
    looks = audit.looks
    # The fifty readers share their reads, so the stream is read fewer than fifty times.
    assert looks < 50
    await asyncio.wait([asyncio.create_task(asyncio.sleep(0.1))])
    assert audit.looks == looks


@pytest.mark.parametrize("stated", [10**17, 0])
async def test_start_number_of_one_reader_does_not_affect_other_readers(audit: Watched, stated: int) -> None:
    feed = ApprovalFeed(audit, 10, asyncio.Event())
    await asyncio.to_thread(audit.add, 0, 200)
    await feed.after(stated, 0)
    wait = asyncio.create_task(feed.after(await feed.end(), 5))
    done, _ = await asyncio.wait((wait,), timeout=0.1)
    assert not done
    await asyncio.to_thread(audit.add, 200, 201)
    assert [event.approval_id for event in await wait] == ["a200"]


async def test_shutdown_ends_every_waiting_read(audit: Watched) -> None:
    ending = asyncio.Event()
    feed = ApprovalFeed(audit, 10, ending)
    waits = [asyncio.create_task(feed.after(-1, PATIENT)) for _ in range(3)]
    await asyncio.sleep(0)
    ending.set()
    assert [await wait for wait in waits] == [[], [], []]
