"""Measure the console's queries: `python -m benchmarks.console`, or with `--quick` on a twentieth of the rows.

SQLite and PostgreSQL get 10,000 waiting approvals, 40,000 closed ones, and 1,000,000 decisions. Their JSON is that of
the payments example, with other numbers, times, runs and people. A query has to take less than 200 ms: the first page,
a page per filter, and a search that finds nothing. The figure is the least of five, because
other programs slow down some of them.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
from sqlalchemy import insert, text

from pdp import MemoryAudit, Pep
from pdp.clock import to_milliseconds, to_seconds
from pdp.json import canonical
from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.events import AuditRow, Wanted
from pdp.stores.sql.records import SqlApprovals
from pdp.stores.sql.tables import approvals, audit
from tests.support import payments
from tests.support.postgres import made_database

_BOUND: Final = 200  # milliseconds
_BATCH: Final = 5000
_PAGE: Final = 50
_START: Final = 1_780_000_000.0
_SECONDS: Final = 0.6  # between two decisions
_MONTH: Final = 30 * 86_400.0
_WAITING: Final = 0.2  # the share of the approvals


def examples() -> tuple[list[dict[str, Any]], Approval]:
    """Return the events of an allowed, an escalated and a rejected wire, and the approval of the escalated one."""
    log, effective = MemoryAudit(), payments.effective()
    wires: list[dict[str, Any]] = [{"amount": 20_000}, {}, {"amount": "x"}]
    with payments.engine() as engine:
        pep = Pep(effective, engine, audit=log)
        decided = [pep.decide(payments.wire(**changes), payments.session()) for changes in wires]
    entry = effective.tools["initiate_wire"]
    return log.events, Approval.asked(canonical(decided[1].request), entry, ["limits.exceeded"])


def fill(database: Database, decisions: int, asked: int) -> None:
    """Insert decisions and approvals in bulk. The hashes of the events are not valid."""
    events, approval = examples()
    store = SqlApprovals(database)
    for first in range(0, decisions, _BATCH):
        rows = []
        for number in range(first, first + _BATCH):
            event = {
                **events[0 if number % 10 else 1 if number % 100 else 2], "seq": number,
                "time": to_milliseconds(_START + number * _SECONDS), "subject": f"officer-{number % 977}",
                "run_id": f"run-{number // 20}", "decision_id": f"decision-{number}",
            }  # fmt: skip
            rows.append(AuditRow.of(event, number, orjson.dumps(event).decode())._asdict())
        with database.write(durable=False) as connection:
            connection.execute(insert(audit), rows)
    for first in range(0, asked, _BATCH):
        records = []
        for number in range(first, first + _BATCH):
            opened = _START + number * 10
            is_waiting = number >= asked * (1 - _WAITING)
            one = replace(
                approval, id=f"approval-{number}", call_digest=f"sha256:{number}", run_id=f"run-{number // 5}",
                subject=f"officer-{number % 977}", opened_at=to_seconds(opened),
                expires_at=to_seconds(opened + _MONTH + number * 7919 % 86_400),
                state=ApprovalState.PENDING if is_waiting else list(ApprovalState)[1 + number % 5],
            )  # fmt: skip
            records.append(store._row(one) | {"call_digest": one.call_digest})
        with database.write(durable=False) as connection:
            connection.execute(insert(approvals), records)
    with database.write() as connection:
        connection.execute(text("ANALYZE"))  # PostgreSQL does this itself, a minute later.


def queries(database: Database, log: SqlAudit, decisions: int, asked: int) -> dict[str, Callable[[], object]]:
    """Return the queries of the console's pages."""
    store = SqlApprovals(database)
    now = to_seconds(_START + asked * 10)
    middle, later = (to_milliseconds(_START + part * decisions * _SECONDS) for part in (0.5, 0.51))
    deep = f"approval-{asked - 1}"
    found = {
        "all": Wanted(), "verdict": Wanted(verdict="REJECTED"), "code": Wanted(code="limits.exceeded"),
        "tool": Wanted(tool="initiate_wire"), "subject": Wanted(subject="officer-7"),
        "subject and verdict": Wanted(subject="officer-7", verdict="REJECTED"),
        "time": Wanted(since=middle, until=later), "run": Wanted(run_id="run-7", every=True),
        "nothing": Wanted(code="x"),
    }  # fmt: skip
    waiting: dict[str, dict[str, Any]] = {
        "all": {}, "next page": {"after": deep}, "subject": {"subject": "officer-7"}, "tool": {"tool": "initiate_wire"},
        "run": {"run_id": "run-7"}, "subject and tool": {"subject": "officer-7", "tool": "initiate_wire"},
        "nothing": {"tool": "initiate_wire", "run_id": "x"},
    }  # fmt: skip
    closed = {
        **waiting, "next page": {"after": f"approval-{asked // 2}"}, "state": {"state": ApprovalState.EXPIRED},
        "time": {"opened_from": to_seconds(_START), "opened_before": to_seconds(_START + 3600)},
        "subject and state": {"subject": "officer-7", "state": ApprovalState.DENIED},
    }  # fmt: skip
    return {
        **{f"decisions: {name}": partial(log.search, wanted, _PAGE) for name, wanted in found.items()},
        **{f"counts: {name}": partial(log.counts, wanted) for name, wanted in found.items()},
        "counts by tool": lambda: log.counts_of_tools(Wanted()),
        "older decisions": lambda: log.search(Wanted(), _PAGE, before=decisions // 2),
        "other events of a decision": lambda: log.of_decision({"type": "x.dispatch", "seq": 999, "decision_id": "x"}),
        "events of an approval": lambda: log.of_approval("approval-7"),
        **{f"waiting: {name}": partial(store.page, _PAGE, waiting_at=now, **by) for name, by in waiting.items()},
        **{f"closed: {name}": partial(store.page, _PAGE, **by) for name, by in closed.items()},
        "pending of a subject": lambda: store.list(state=ApprovalState.PENDING, subject="officer-7"),
    }


def milliseconds(query: Callable[[], object]) -> float:
    """Return the least time of a query."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        query()
        taken.append(1000 * (time.perf_counter() - start))
    return min(taken)


def main() -> int:
    """Measure, print the figures, and return 1 if a query is too slow."""
    parser = argparse.ArgumentParser(description="Time of the console's queries in milliseconds.")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows, rounded up to 5,000")
    decisions, asked = (50_000, 5000) if parser.parse_args().quick else (1_000_000, 50_000)
    missed = 0
    for kind in ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as place, Database.open(made_database(kind, Path(place))) as database:
            fill(database, decisions, asked)
            with closing(SqlAudit(database)) as log:
                for name, query in queries(database, log, decisions, asked).items():
                    taken = milliseconds(query)
                    missed += taken > _BOUND
                    print(
                        f"{'MISSED' if taken > _BOUND else 'reached':8} {taken:7.1f} ms  {kind:10} {name}", flush=True
                    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
