"""Searches of the audit stream: pages have no gaps, odd texts are found exactly, and a search reads few events."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from pdp.audit.chain import AuditEvent, recordable
from pdp.clock import to_milliseconds
from pdp.stores.sql import events as events_module
from pdp.stores.sql import tables
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import Wanted
from pdp.stores.sql.records import SqlApprovals
from tests.stores.sql.test_approvals import approval
from tests.support.postgres import DATABASES, empty_database

MINUTE, START = 60.0, 1_782_900_000.0
ODD = ("run\x00", "run\ufffd", "run", "é" * 300, "é" * 299, "x" * 255, "'%_\u202e<script>")


def new_event(number: int, kind: str = "tool.pay.dispatch", **fields: Any) -> AuditEvent:
    time = to_milliseconds(START + MINUTE * number)
    return {"time": time, "type": kind, "tool_name": "pay", **fields}  # type: ignore[typeddict-item]


@pytest.fixture
def log(database: Database) -> Iterator[SqlAudit]:
    with closing(SqlAudit(database)) as opened:
        yield opened


def fill(log: SqlAudit) -> None:
    """Append 30 decisions: every third is a DENY with two codes, every fifth was rejected. Results follow."""
    for number in range(30):
        texts: dict[str, Any] = {name: recordable(ODD[number % 7]) for name in ("subject", "run_id")}
        verdict = {"verdict": "DENY", "codes": ("a.b", "c.d")} if number % 3 == 0 else {"verdict": "ALLOW"}
        decided = verdict if number % 5 else {"rejection": "x"}
        log.append(new_event(number, decision_id=f"d{number}", **texts, **decided))
        log.append(new_event(number, "tool.pay.result", decision_id=f"d{number}", **texts))


def pages(log: SqlAudit, wanted: Wanted, limit: int = 4) -> list[int]:
    numbers: list[int] = []
    found = log.search(wanted, limit)
    while True:
        numbers += [row.seq for row in found.rows]
        assert len(found.rows) <= limit
        if found.older is None:
            return numbers
        found = log.search(wanted, limit, before=found.older)


@pytest.mark.parametrize("searched", [3, 100])
def test_search_finds_each_matching_event_once(log: SqlAudit, monkeypatch: pytest.MonkeyPatch, searched: int) -> None:
    monkeypatch.setattr(events_module, "SEARCHED", searched)
    assert log.search(Wanted(), 5) == ([], None, None)
    fill(log)
    newest = [*range(29, -1, -1)]

    def found(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    assert pages(log, Wanted()) == found(newest)
    assert pages(log, Wanted(every=True)) == [*range(59, -1, -1)]
    denied = [number for number in newest if number % 3 == 0 and number % 5]
    assert pages(log, Wanted(verdict="DENY")) == pages(log, Wanted(code="c.d")) == found(denied)
    assert pages(log, Wanted(verdict="REJECTED")) == found([25, 20, 15, 10, 5, 0])
    assert pages(log, Wanted(code="a")) == pages(log, Wanted(code="%")) == pages(log, Wanted(verdict="\x00")) == []
    for place, odd in enumerate(ODD):
        of_odd = found([number for number in newest if number % 7 == place])
        assert pages(log, Wanted(subject=recordable(odd))) == of_odd
        assert pages(log, Wanted(run_id=recordable(odd), tool="pay")) == of_odd
    times = [to_milliseconds(START + MINUTE * number) for number in (10, 20)]
    assert pages(log, Wanted(since=times[0], until=times[1])) == found([*range(19, 9, -1)])
    assert pages(log, Wanted(since="0001-01-01T00:00:00.000Z", until="9999-12-31T23:59:59.999Z")) == found(newest)
    assert [row.seq for row in log.search(Wanted(), 5, before=10**30, after=56).rows] == [58]


def test_search_of_a_time_ignores_earlier_and_later_events(log: SqlAudit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SEARCHED", 50)
    monkeypatch.setattr(events_module, "_CLOCKS_DIFFER", 2)
    for number in range(0, 60 * 24, 10):
        log.append(new_event(number, verdict="ALLOW"))
    day = [to_milliseconds(START + MINUTE * number) for number in (300, 340)]

    found = log.search(Wanted(since=day[0], until=day[1]), 10)

    assert [row.time for row in found.rows] == [
        to_milliseconds(START + MINUTE * number) for number in (330, 320, 310, 300)
    ]
    assert (found.older, found.back_to) == (None, day[0])
    assert log.search(Wanted(tool="none"), 10).older == 144 - 50


def test_decisions_are_counted_by_time_and_verdict(log: SqlAudit) -> None:
    assert log.counts(Wanted()) == {}
    fill(log)
    log.append(new_event(60 * 24, verdict="STEP_UP"))

    assert {when: sum(counts.values()) for when, counts in log.counts(Wanted()).items()} == {
        "2026-07-01T10": 30, "2026-07-02T10": 1,
    }  # fmt: skip
    until = to_milliseconds(START + MINUTE * 10)
    assert log.counts(Wanted(verdict="REJECTED", until=until, every=True)) == {
        "2026-07-01T10:00": {"REJECTED": 1}, "2026-07-01T10:05": {"REJECTED": 1},
    }  # fmt: skip


def test_events_of_an_approval_and_of_a_decision_are_found(log: SqlAudit) -> None:
    fill(log)
    log.append(new_event(0, "approval.opened", approval_id="a"))
    log.append(new_event(0, "approval.granted", approval_id="b"))
    odd = 'd"\x00%\\'
    for kind in ("dispatch", "result"):
        log.append(new_event(0, f"tool.pay.{kind}", decision_id=odd, approval_id="a", verdict="ALLOW"))
        log.append(new_event(0, f"tool.pay.{kind}", decision_id=odd.replace("d", "D"), verdict="ALLOW"))

    assert [row.type for row in log.of_approval("a")] == ["approval.opened"]
    assert log.of_approval("a\x00") == log.of_approval("\ud800") == []
    events = [json.loads(row.line) for row in log.lines(-1, 100)]
    assert [row.seq for row in log.of_decision(events[0])] == [1]
    assert [row.seq for row in log.of_decision(events[62])] == [64]
    assert [row.seq for row in log.of_decision(events[64])] == [62]
    assert log.of_decision(events[60]) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE pdp_audit SET line = replace(line, 'pay', 'p') WHERE seq = 10", "event 10: the hash does not match"),
        ("UPDATE pdp_audit SET line = replace(line, 'pay', 'p') WHERE seq = 9", "event 9: the hash does not match"),
        ("UPDATE pdp_audit SET verdict = NULL WHERE seq = 10", "event 10: the columns differ from the event's line"),
        ("DELETE FROM pdp_audit WHERE seq = 9", "earlier events were removed, inserted or moved"),
        ("DELETE FROM pdp_audit WHERE seq = 10", "the event is missing"),
    ],
)  # fmt: skip
def test_changed_link_of_the_chain_is_reported(database: Database, log: SqlAudit, change: str, fault: str) -> None:
    fill(log)
    assert [log.link_fault(seq) for seq in (0, 1, 59)] == [None] * 3
    assert log.link_fault(60) == log.link_fault(-1) == "the event is missing"
    with database.write() as connection:
        connection.execute(text(change))

    assert log.link_fault(10) == fault


@pytest.mark.parametrize("kind", DATABASES)
def test_columns_of_older_rows_are_filled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Database.open(empty_database(kind, first), upgrade=True) as database, closing(SqlAudit(database)) as log:
        fill(log)
        log.append(new_event(0, "approval.opened", approval_id="a", subject="\x00"))
        SqlApprovals(database).add(approval(run_id=ODD[3]))
        with database.read() as connection:
            stored = [
                [dict(row) for row in connection.execute(select(table).order_by(table.c.seq)).mappings()]
                for table in (tables.audit, tables.approvals)
            ]
    stored[0].append(dict.fromkeys(stored[0][0]) | {"seq": 99, "type": "x", "line": "{"})

    url = empty_database(kind, second)
    with monkeypatch.context() as older:
        older.setattr(tables, "SCHEMA", "0004")
        with Database.open(url, upgrade=True) as database, database.write() as connection:
            for row in stored[0]:
                connection.execute(text("INSERT INTO pdp_audit VALUES (:seq, :type, :approval_id, :line)"), row)
            add = (
                "INSERT INTO pdp_approvals (id, call_digest, state, record) VALUES (:id, :call_digest, :state, :record)"
            )
            connection.execute(text(add), stored[1])
    with Database.open(url, upgrade=True) as database, database.read() as connection:
        for table, rows in zip((tables.audit, tables.approvals), stored, strict=True):
            assert [dict(row) for row in connection.execute(select(table).order_by(table.c.seq)).mappings()] == rows
