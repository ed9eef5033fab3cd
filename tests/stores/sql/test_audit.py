"""The stream in a database: shared, whole or not there, and refused once it is not what was seen of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdp.audit.chain import AuditEvent, verify_chain
from pdp.stores.sql.audit import AuditRow, SqlAudit
from pdp.stores.sql.database import Database
from tests.support import at_once
from tests.support.postgres import DATABASES, empty_database

KEY = b"k" * 32

Opened = Callable[[], SqlAudit]


def event(number: int = 0, **fields: object) -> AuditEvent:
    return {"time": "t", "type": "x", "tool": str(number), **fields}  # type: ignore[typeddict-item]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return empty_database(request.param, tmp_path)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url, upgrade=True) as opened:
        yield opened


@pytest.fixture
def opened(database: Database) -> Iterator[Opened]:
    """Opens the stream, as one process does."""
    logs: list[SqlAudit] = []

    def open_stream() -> SqlAudit:
        logs.append(SqlAudit(database, KEY))
        return logs[-1]

    yield open_stream
    for log in logs:
        log.close()


def verified(log: SqlAudit) -> int:
    return verify_chain((row.line.encode() for row in log.lines(-1, 10_000)), KEY)


def test_two_streams_on_one_table_are_one_chain(opened: Opened) -> None:
    first, second = opened(), opened()

    def append(log: SqlAudit) -> None:
        for number in range(20):
            log.append(event(number))

    at_once([lambda log=log: append(log) for log in (first, second, first, second)])  # type: ignore[misc]

    assert (verified(first), first.last_seq()) == (80, 79)


def test_what_is_read_again(opened: Opened) -> None:
    log = opened()
    assert (log.last_seq(), log.lines(-1, 10)) == (-1, [])
    log.append(event(approval_id="a"))
    log.append(event(type="approval.granted", approval_id="a"))
    log.append(event(type="approval.consumed", approval_id="b"))

    rows = log.lines(-1, 10)
    assert [row[:3] for row in rows] == [(0, "x", None), (1, "approval.granted", "a"), (2, "approval.consumed", "b")]
    assert log.lines(0, 1) == [rows[1]] == [AuditRow(1, "approval.granted", "a", rows[1].line)]
    assert log.lines(-1, 10, approvals_only=True) == rows[1:]
