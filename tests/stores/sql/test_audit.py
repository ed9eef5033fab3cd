"""The audit stream in a database: processes share it, appends are atomic, and a changed stream rejects appends."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, make_url, text

from pdp import Approvals, Pep
from pdp.audit.chain import AuditEvent
from pdp.audit.verify import verify_chain
from pdp.errors import AuditError, StoreError
from pdp.stores.sql import audit as audit_module
from pdp.stores.sql import database as database_module
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.records import SqlActions, SqlApprovals
from tests.support import PATIENCE, at_once, payments, recorded_by_killed, until
from tests.support.payments import session, wire
from tests.support.postgres import DATABASES, made_database
from tests.support.scripted import Scripted, until_approved

KEY = b"k" * 32

Opened = Callable[[], SqlAudit]


def new_event(number: int = 0, **fields: object) -> AuditEvent:
    return {"time": "t", "type": "x", "tool_name": str(number), **fields}  # type: ignore[typeddict-item]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return made_database(request.param, tmp_path)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url) as opened:
        yield opened


@pytest.fixture
def opened(database: Database) -> Iterator[Opened]:
    """A function that opens the audit stream with a new database connection, as another process would."""
    logs: list[SqlAudit] = []

    def open_stream() -> SqlAudit:
        logs.append(SqlAudit(database, KEY))
        return logs[-1]

    yield open_stream
    for log in logs:
        log.close()


def verified(log: SqlAudit, key: bytes | None = KEY) -> int:
    return verify_chain((row.line.encode() for row in log.lines(-1, 1_000_000)), key)


@contextmanager
def locked_stream(database: Database) -> Iterator[None]:
    """Lock the stream during the `with` block."""
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.execute(text(audit_module._LOCK))
        yield


def commits(database: Database) -> list[str]:
    """Return a list that records each commit of the database from now on."""
    done: list[str] = []
    event.listen(database._engine, "commit", lambda _: done.append("commit"))
    return done


def queue_is_empty(log: SqlAudit) -> Callable[[], bool]:
    """Return a function that returns whether the writer thread has taken all queued events."""
    return lambda: not log._waiting


def append_error(log: SqlAudit) -> str:
    with pytest.raises(AuditError) as caught:
        log.append(new_event())
    return str(caught.value)


# Several streams and processes


def test_two_audit_streams_on_one_database_table_write_one_hash_chain(opened: Opened) -> None:
    first, second = opened(), opened()

    def append(log: SqlAudit) -> None:
        for number in range(20):
            log.append(new_event(number))

    at_once([lambda log=log: append(log) for log in (first, second, first, second)])  # type: ignore[misc]

    assert (verified(first), first.last_seq()) == (80, 79)


def test_lines_returns_a_page_of_all_audit_events_or_only_of_approval_events(opened: Opened) -> None:
    log = opened()
    assert (log.last_seq(), log.lines(-1, 10)) == (-1, [])
    log.append(new_event(approval_id="a"))
    log.append(new_event(type="approval.granted", approval_id="a"))
    log.append(new_event(type="approval.consumed", approval_id="b"))

    rows = log.lines(-1, 10)
    assert [row[:3] for row in rows] == [(0, "x", None), (1, "approval.granted", "a"), (2, "approval.consumed", "b")]
    assert log.lines(0, 1) == [rows[1]]
    assert log.lines(-1, 10, approvals_only=True) == rows[1:]


_APPENDING = """
import sys
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from tests.support import be_patient
be_patient()
log = SqlAudit(Database.open(sys.argv[1]))
for number in range(50):
    log.append({"time": "t", "type": "x", "tool_name": sys.argv[2]})
log.close()
"""


@pytest.mark.process
def test_concurrent_processes_and_threads_write_one_audit_hash_chain(database: Database, url: str) -> None:
    others = [subprocess.Popen([sys.executable, "-c", _APPENDING, url, name]) for name in ("a", "b")]
    log = SqlAudit(database)

    def append() -> None:
        for _ in range(50):
            log.append(new_event())

    at_once([append, append])
    assert [process.wait(PATIENCE) for process in others] == [0, 0]
    assert verified(log, None) == 200
    log.close()


_APPEND_FOR_EVER = """
import os, sys
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
from tests.support import be_patient

def append_for_ever(pipe):
    be_patient()
    log = SqlAudit(Database.open(sys.argv[1]))
    while True:
        waiting = [log.offer({"time": "t", "type": "x", "tool_name": "y" * 200}) for _ in range(3)]
        for each in waiting:
            each.result()
            os.write(pipe, b".")
"""


@pytest.mark.process
def test_killed_processes_lose_no_recorded_event(database: Database, url: str) -> None:
    database.close()
    recorded = recorded_by_killed(_APPEND_FOR_EVER, url)
    log = SqlAudit(database)
    log.append(new_event())

    assert verified(log, None) > recorded > 0
    log.close()


_FORKING = """
import os, sys
from pdp.errors import AuditError
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.database import Database
log = SqlAudit(Database.open(sys.argv[1]))
log.append({"time": "t", "type": "x"})
child = os.fork()
if not child:
    try:
        log.append({"time": "t", "type": "x"})
    except AuditError as error:
        print(error.message, error.hint, flush=True)
    log.close()
    os._exit(0)
os.waitpid(child, 0)
log.append({"time": "t", "type": "x"})
log.close()
"""


@pytest.mark.process
def test_forked_process_must_open_the_stream_again(database: Database, url: str) -> None:
    database.close()
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, url], check=True, timeout=PATIENCE, capture_output=True, text=True
    )

    assert done.stdout == f"audit stream of {database.name} was opened before this process was forked open it again\n"
    assert verified(SqlAudit(database), None) == 2


# Several events in one transaction


def test_queued_events_are_written_in_one_transaction(database: Database, opened: Opened) -> None:
    log = opened()
    done = commits(database)
    with locked_stream(database):
        first = log.offer(new_event())
        assert until(queue_is_empty(log))
        others = [log.offer(new_event(number)) for number in range(15)]
        assert not first.done()
    assert [each.result() for each in (first, *others)] == [None] * 16

    assert done == ["commit"] * 3  # The lock holder, the first event and the other 15 events each cause one commit.
    assert verified(log) == 16


async def test_append_records_all_of_its_events_or_none(opened: Opened) -> None:
    log = opened()
    bad = new_event(subject="\ud800")
    with locked_stream(log._database):
        tasks = [
            asyncio.create_task(log.aappend(*events))
            for events in ((new_event(0), new_event(1)), (new_event(2), bad), (new_event(3),))
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [type(None), AuditError, type(None)]
    assert str(results[1]).startswith("audit event cannot be written: ")
    assert [row.line.split('"tool_name":')[1][:3] for row in log.lines(-1, 9)] == ['"0"', '"1"', '"3"']
    assert verified(log) == 3


async def test_sqlite_wal_file_stays_small_when_the_event_loop_writes_events(tmp_path: Path) -> None:
    with Database.open(made_database("sqlite", tmp_path)) as database:
        log = SqlAudit(database, KEY)
        done = commits(database)
        for number in range(3000):
            await log.aappend(new_event(number, subject="s" * 250))

        assert len(done) == 3000 // 200
        assert verified(log) == 3000
        assert (tmp_path / "store.db-wal").stat().st_size < 2000 * 4096
        log.close()
        with pytest.raises(AuditError, match="is closed"):
            await log.aappend(new_event())


async def test_cancelled_append_records_nothing(opened: Opened) -> None:
    log = opened()
    with locked_stream(log._database):
        first = log.offer(new_event(0))
        assert until(queue_is_empty(log))
        cancelled = asyncio.create_task(log.aappend(new_event(1)))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    first.result()
    await log.aappend(new_event(2))

    assert [row.line.split('"tool_name":')[1][:3] for row in log.lines(-1, 9)] == ['"0"', '"2"']


async def test_async_call_records_its_events_without_an_extra_thread(opened: Opened) -> None:
    log = opened()
    pep = Pep(payments.effective(), payments.engine(), audit=log, tools={"initiate_wire": payments.Hub().initiate_wire})
    before = threading.active_count()
    evaluation = await pep.acall(wire(amount=1.0), session(time=None))

    assert (evaluation.executed, threading.active_count() - before) == (True, 1)
    assert [row.type for row in log.lines(-1, 9)] == ["tool.initiate_wire.dispatch", "tool.initiate_wire.result"]


def test_close_writes_queued_events_and_rejects_later_ones(opened: Opened) -> None:
    log = opened()
    with locked_stream(log._database):
        waiting = log.offer(new_event())
        closing = threading.Thread(target=log.close)
        closing.start()
    closing.join()

    assert waiting.done()
    assert append_error(log) == f"audit stream of {log._database.name} is closed"
    assert verified(log) == 1


# Events inside transactions of stores


def test_audit_stream_records_the_use_of_an_approval_in_the_same_database(database: Database, opened: Opened) -> None:
    log = opened()
    hub = payments.Hub()
    pep = Pep(
        payments.effective(), Scripted(until_approved), audit=log, tools={"initiate_wire": hub.initiate_wire},
        keys=SqlIdempotency(database), actions=SqlActions(database), approvals=Approvals(SqlApprovals(database)),
    )  # fmt: skip
    asked = pep.call(wire(), session(time=None)).approval
    assert asked is not None
    assert pep.approvals is not None
    pep.approvals.grant(asked.id, {"sub": "boss", "roles": ["payments.approver"]})
    assert pep.call(wire(), session(time=None)).executed

    assert [(row.type, row.approval_id) for row in log.lines(-1, 9)] == [
        ("approval.opened", asked.id), ("tool.initiate_wire.dispatch", None), ("approval.granted", asked.id),
        ("tool.initiate_wire.dispatch", None), ("approval.consumed", asked.id), ("tool.initiate_wire.result", None),
    ]  # fmt: skip
    assert verified(log) == 6


def test_event_in_a_sqlite_transaction_is_rolled_back_with_the_transaction(database: Database, opened: Opened) -> None:
    log = opened()
    log.append(new_event(0))
    with suppress(StoreError), database.write() as transaction:
        log.append_within(new_event(1), transaction)
        log.append_within(new_event(2), transaction)
        raise StoreError("undone")
    log.append(new_event(3))
    with database.write() as transaction:
        log.append_within(new_event(4), transaction)
    log.append_within(new_event(5), None)

    # SQLite rolls back the events with the transaction. PostgreSQL writes them in another transaction, so they stay.
    undone = [] if database.dialect == "sqlite" else ["1", "2"]
    assert [row.line.split('"tool_name":"')[1][0] for row in log.lines(-1, 9)] == ["0", *undone, "3", "4", "5"]
    assert verified(log) == 4 + len(undone)


# Failed writes


def test_append_to_a_locked_stream_times_out(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if url.startswith("sqlite"):
        monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
        reason = "database is locked"
    else:
        url = make_url(url).update_query_dict({"options": "-c lock_timeout=50"}).render_as_string(hide_password=False)
        reason = "canceling statement due to lock timeout"
    with Database.open(url) as database, Database.open(url) as other:
        log = SqlAudit(database, KEY)
        holder = sqlite3.connect(str(database.url.database), isolation_level=None) if "sqlite" in url else None
        if holder:
            holder.execute("BEGIN IMMEDIATE")
            message = append_error(log)
            holder.close()
        else:
            with locked_stream(other):
                message = append_error(log)
        log.append(new_event())

        assert message == (
            f"audit stream of {database.name} cannot be appended to: database {database.name}: {reason}"
            " (check the URL, the password and the disk, and that no other process has locked the database)"
        )
        assert verified(log) == 1
        log.close()


def test_full_disk_raises_an_error_and_loses_no_event(tmp_path: Path) -> None:
    with Database.open(made_database("sqlite", tmp_path)) as database:
        log = SqlAudit(database, KEY)
        with database.write_at_once() as cursor:
            assert cursor is not None
            pages: int = cursor.execute("PRAGMA page_count").fetchone()[0]
            cursor.execute(f"PRAGMA max_page_count = {pages}")

        faults: list[str] = []
        before = -5
        while not faults:
            before += 5
            try:
                asyncio.run(log.aappend(*(new_event(number, subject="s" * 250) for number in range(5))))
            except AuditError as error:
                faults.append(error.message)
        name = database.name
        assert faults == [f"audit stream of {name} cannot be appended to: database {name}: database or disk is full"]
        assert verified(log) == before

        with database.write_at_once() as cursor:
            assert cursor is not None
            cursor.execute(f"PRAGMA max_page_count = {pages + 100}")
        asyncio.run(log.aappend(new_event()))
        assert verified(log) == before + 1
        log.close()


@pytest.mark.process
def test_error_of_an_interrupted_database_commit_says_that_audit_events_may_be_stored(tmp_path: Path) -> None:
    with Database.open(made_database("postgresql", tmp_path)) as database:
        log = SqlAudit(database, KEY)
        log.append(new_event())

        cuts: list[str] = []

        def cut(connection: Connection) -> None:
            if cuts:
                return
            cuts.append("cut")
            pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            with database.read() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

        event.listen(database._engine, "commit", cut)
        assert append_error(log).startswith(
            f"audit stream of {database.name} cannot be appended to (the event may be stored): database "
        )
        log.append(new_event())
        assert verified(log) == 2
        log.close()


def test_internal_error_fails_every_append_that_waits_in_the_queue(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened()

    assert log.offer({"time": "t"}).exception() is not None  # type: ignore[typeddict-item]
    with pytest.raises(AuditError, match="see the log"):
        log.offer({"time": "t"}).result()  # type: ignore[typeddict-item]
    log.append(new_event())
    assert verified(log) == 1


# Changed streams


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM pdp_audit WHERE seq > 1", "has lost events that this process has seen"),
        ("DELETE FROM pdp_audit", "has lost events that this process has seen"),
        ("UPDATE pdp_audit SET seq = 9 WHERE seq = 2", "cannot be continued: its last event was changed"),
        ("UPDATE pdp_audit SET line = replace(line, '\"tool_name\":\"2\"', '\"tool_name\":\"9\"') WHERE seq = 2",
         "cannot be continued: the hash does not match: the event was changed, or written with another key"),
        ("UPDATE pdp_audit SET line = '{}' WHERE seq = 2", "cannot be continued: not an event"),
    ],
)  # fmt: skip
def test_append_to_an_audit_stream_that_was_changed_is_rejected(
    database: Database, opened: Opened, change: str, message: str
) -> None:
    log = opened()
    for number in range(3):
        log.append(new_event(number))
    with database.write() as connection:
        connection.execute(text(change))
    before = log.lines(-1, 9)

    evidence = "run `pdp audit verify`, keep the database as evidence, and use a new database"
    if "hash does not match" in message or "not an event" in message:  # a wrong key is not evidence
        evidence = f"check the key in audit_key_file or PDP_AUDIT_KEY; if it is right, {evidence}"
    assert append_error(log) == f"audit stream of {database.name} {message} ({evidence})"
    assert log.lines(-1, 9) == before


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "the event was written with a key, but no key was given"),
        (b"x" * 32, "the hash does not match: the event was changed, or"),
    ],
)
def test_append_with_another_key_is_rejected(opened: Opened, key: bytes | None, message: str) -> None:
    log = opened()
    log.append(new_event())
    other = SqlAudit(log._database, key)

    assert f"cannot be continued: {message}" in append_error(other)
    other.close()
    assert verified(log) == 1
