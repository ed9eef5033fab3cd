"""The database: opening it, bringing it up to date, and what goes wrong with it."""

import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from pdp.errors import MissingExtraError, PdpError, StoreError, StoreSchemaError, UsageError
from pdp.stores.sql import database as database_module
from pdp.stores.sql import tables
from pdp.stores.sql.database import Database, read_url
from pdp.stores.sql.tables import SCHEMA, revision_of
from tests.support import PATIENCE, at_once
from tests.support.postgres import DATABASES, empty_database, server

HINT = "(write sqlite:///path/to/file.db or postgresql://user@host/database)"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return empty_database(request.param, tmp_path)


def told(step: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(PdpError) as caught:
        step()
    return type(caught.value), str(caught.value)


def test_the_migrations_make_what_queries_name(url: str) -> None:
    with Database.open(url, upgrade=True) as opened, opened.read() as connection:
        for table in (
            tables.idempotency, tables.actions, tables.approvals, tables.runs, tables.run_values, tables.ledger_key,
            tables.budgets, tables.reservations,
        ):  # fmt: skip
            made = {column["name"] for column in inspect(connection).get_columns(table.name)}
            assert made == set(table.columns.keys())


def test_the_schema_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(tables._MIGRATIONS))
    config.set_main_option("path_separator", "os")

    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def test_upgrading_again_changes_nothing(url: str) -> None:
    for _ in range(2):
        with Database.open(url, upgrade=True) as opened, opened.write() as connection:
            connection.execute(
                text("INSERT INTO pdp_actions (id, key_id, state, record) VALUES (:id, :id, 'staged', '')"),
                {"id": str(_)},
            )
    with Database.open(url) as opened, opened.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 2


def test_tables_of_an_older_release_are_brought_up_to_date(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(tables, "SCHEMA", "0001")
        with Database.open(url, upgrade=True) as opened:
            add_action(opened)
            name = opened.name
    words = (
        f"database {name}: its tables are of revision 0001, and this release works with {SCHEMA} (run `pdp db upgrade`)"
    )
    assert told(lambda: Database.open(url)) == (StoreSchemaError, words)

    with Database.open(url, upgrade=True) as opened, opened.read() as connection:
        assert (revision_of(connection), count_actions(opened)) == (SCHEMA, 1)


def test_several_may_upgrade_at_once(url: str) -> None:
    def work() -> str:
        with Database.open(url, upgrade=True) as opened:
            return opened.dialect

    assert len(at_once([work] * 6)) == 6


NEWER = (
    f"its tables are of revision 9999, and this release works with {SCHEMA} "
    "(use a newer release of tool-pdp; going back is not supported)"
)


@pytest.mark.parametrize(
    ("statement", "upgrade", "fault"),
    [
        ("DROP TABLE pdp_schema", False, "it has no tables yet (run `pdp db upgrade`)"),
        ("UPDATE pdp_schema SET version_num = '0000'", False,
         f"its tables are of revision 0000, and this release works with {SCHEMA} (run `pdp db upgrade`)"),
        *[("UPDATE pdp_schema SET version_num = '9999'", upgrade, NEWER) for upgrade in (False, True)],
    ],
)  # fmt: skip
def test_a_database_of_another_release_is_an_error(url: str, statement: str, upgrade: bool, fault: str) -> None:
    with Database.open(url, upgrade=True) as opened, opened.write() as connection:
        name = opened.name
        connection.execute(text(statement))

    assert told(lambda: Database.open(url, upgrade=upgrade)) == (StoreSchemaError, f"database {name}: {fault}")


def test_a_failed_upgrade_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(connection: Connection, name: str) -> None:
        tables.upgrade_schema(connection, name)
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "upgrade_schema", breaks)
        with pytest.raises(OSError, match="away"):
            Database.open(url, upgrade=True)
    assert told(lambda: Database.open(url))[1].endswith("it has no tables yet (run `pdp db upgrade`)")
    Database.open(url, upgrade=True).close()


def test_a_file_is_made_by_upgrading_alone_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert told(lambda: Database.open(f"sqlite:///{path}")) == (
        UsageError, f"database file {path} is not there (run `pdp db upgrade`)",
    )  # fmt: skip
    assert not path.exists()
    with Database.open(f"sqlite:///{path}", upgrade=True) as opened, opened.write():
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}

    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///store.db", upgrade=True) as opened:
        monkeypatch.chdir("/")
        opened.close()
        with opened.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 0
    assert (tmp_path / "store.db").is_file()


def test_sqlite_waits_for_the_disk_and_keeps_a_log_ahead(tmp_path: Path) -> None:
    def stated(connection: Connection) -> list[Any]:
        return [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]

    with Database.open(empty_database("sqlite", tmp_path), upgrade=True) as opened:
        for transaction, waits in ((opened.read(), 2), (opened.write(durable=False), 1), (opened.write(), 2)):
            with transaction as connection:
                assert stated(connection) == ["wal", waits]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *[(url, "the database URL cannot be read") for url in ("nonsense", "")],
        *[(url, "the database URL cannot be used: SQLite is a file here, without options")
          for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///a.db?mode=ro")],
        ("mysql://root:secret@db/x", "database mysql://root:***@db/x: mysql is not supported"),
        ("sqlite+aiosqlite:///a.db", "database sqlite:///a.db: sqlite+aiosqlite is not supported"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used(url: str, message: str) -> None:
    assert told(lambda: Database.open(url, upgrade=True)) == (UsageError, f"{message} {HINT}")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_by_all_its_names(scheme: str) -> None:
    url = read_url(f"{scheme}://me:secret@db/x?connect_timeout=3")

    assert url.render_as_string(hide_password=False) == "postgresql+psycopg://me:secret@db/x?connect_timeout=3"


def test_postgresql_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'tool-pdp\[postgres\]'"):
        Database.open("postgresql://me:secret@db/x")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none" / "store.db"

    assert told(lambda: Database.open(f"sqlite:///{path}", upgrade=True)) == (
        UsageError,
        f"database file {path} cannot be made: No such file or directory (check folder and permissions)",
    )


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("a text, and quite long enough to be looked at by SQLite, which reads a hundred bytes of it" * 9)

    for upgrade in (False, True):
        assert told(lambda upgrade=upgrade: Database.open(f"sqlite:///{path}", upgrade=upgrade)) == (  # type: ignore[misc]
            StoreError,
            (f"database sqlite:///{path}: file is not a database (check that it is there, and not held by another)"),
        )


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    kind, message = told(lambda: Database.open(f"postgresql://me:secret@/x?host={tmp_path}"))

    assert kind is StoreError
    assert message.startswith("database postgresql://me:***@/x?host=")
    assert message.endswith("(check that it is there, and not held by another)")
    assert "secret" not in message


def test_a_database_that_is_held_is_a_failure_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    with Database.open(f"sqlite:///{path}", upgrade=True) as opened:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        kind, message = told(opened.write().__enter__)
        holder.close()

        assert (kind, message) == (
            StoreError,
            f"database sqlite:///{path}: database is locked (check that it is there, and not held by another)",
        )
        with opened.write() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1


def test_a_thread_that_never_ends_its_turn_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TURN_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path}/store.db"
    with Database.open(url, upgrade=True) as opened, ThreadPoolExecutor(1) as threads:
        with opened.write():
            refusal = threads.submit(told, opened.write().__enter__).result()
        assert threads.submit(add_action, opened).result() == "added"

    assert refusal == (
        StoreError, f"database {url}: other threads hold it (another process may hold it as well)",
    )  # fmt: skip


@pytest.mark.process
def test_a_server_ends_the_transaction_of_a_process_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_database("postgresql", tmp_path)
    lock = text("LOCK TABLE pdp_actions IN ACCESS EXCLUSIVE MODE")
    with ExitStack() as opened:
        other = opened.enter_context(Database.open(url, upgrade=True))
        monkeypatch.setattr(database_module, "BUSY_SECONDS", 1)
        stopped = opened.enter_context(Database.open(url))
        # Entered and left alone, as by a process that does not go on.
        transaction = stopped.write()
        transaction.__enter__().execute(lock)
        with other.write() as connection:
            connection.execute(lock)
        with pytest.raises(StoreError, match="idle-in-transaction timeout"):
            transaction.__exit__(None, None, None)


@pytest.mark.parametrize("way", ["the same path", "a link"])
def test_stores_on_one_file_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    path, other_path = tmp_path / "store.db", tmp_path / "store.db"
    if way == "a link":
        other_path = tmp_path / "link.db"
        other_path.symlink_to(path)
    with (
        Database.open(f"sqlite:///{path}", upgrade=True) as one,
        Database.open(f"sqlite:///{other_path}") as other,
        ThreadPoolExecutor(1) as threads,
    ):

        def write() -> Any:
            with other.write() as connection:
                return connection.execute(text("SELECT 1")).scalar()

        with one.write() as connection:
            assert (one.owns(connection), other.owns(connection)) == (True, True)
            waiting = threads.submit(write)
            # By itself SQLite would give up before that.
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert waiting.result(PATIENCE) == 1


def test_stores_on_two_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with (
        Database.open(f"sqlite:///{tmp_path}/one.db", upgrade=True) as one,
        Database.open(f"sqlite:///{tmp_path}/other.db", upgrade=True) as other,
        ThreadPoolExecutor(1) as threads,
        one.write() as connection,
    ):
        assert not other.owns(connection)

        def write() -> Any:
            with other.write() as own:
                return own.execute(text("SELECT 1")).scalar()

        assert threads.submit(write).result(PATIENCE) == 1


def test_an_error_does_not_tell_what_was_written(url: str) -> None:
    with Database.open(url, upgrade=True) as opened:

        def write() -> None:
            with opened.write() as connection:
                connection.execute(
                    text("INSERT INTO pdp_actions (id, key_id, state, record) VALUES ('a', 'a', :state, 'secret')"),
                    {"state": "secret"},
                )

        kind, message = told(write)
        assert kind is StoreError
        assert "secret" not in message
        with opened.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 0


def test_a_connection_that_the_server_ended_is_made_anew() -> None:
    with (
        Database.open(empty_database("postgresql", Path()), upgrade=True) as opened,
        Database.open(server(), upgrade=True) as other,
    ):
        with other.write() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
                {"name": opened.url.database},
            )
        with opened.write() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1


def in_child(step: Callable[[], str]) -> str:
    """What `step` gives in a forked child, or the error that it ends with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = step()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it goes to the parent
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answered:
        answer = answered.read()
    os.waitpid(child, 0)
    return answer


def add_action(opened: Database) -> str:
    with opened.write() as connection:
        number = connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar()
        connection.execute(
            text("INSERT INTO pdp_actions (id, key_id, state, record) VALUES (:id, :id, 'staged', '')"),
            {"id": str(number)},
        )
    return "added"


def count_actions(opened: Database) -> int:
    with opened.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar_one())


# Python 3.12 warns of every fork beside threads; here it is what is tested.
may_fork_beside_threads = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.process
@may_fork_beside_threads
def test_what_was_opened_before_a_fork_is_refused_in_the_child(url: str) -> None:
    def added_by_another() -> str:
        with Database.open(url) as another:
            return add_action(another)

    opened = Database.open(url, upgrade=True)
    refusal = f"StoreError: database {opened.name}: it was opened before this process was forked "
    refusal += "(open it after the fork, and not in the parent before)"
    with ThreadPoolExecutor(1) as threads:
        begun, forked = threading.Event(), threading.Event()

        def write() -> None:
            with opened.write():
                begun.set()
                assert forked.wait(PATIENCE)

        writing = threads.submit(write)
        assert begun.wait(PATIENCE)
        answers = [in_child(lambda: add_action(opened)), in_child(added_by_another)]
        forked.set()
        writing.result(PATIENCE)
    server = opened.dialect == "postgresql"

    assert answers == [refusal, "added" if server else refusal]
    assert add_action(opened) == "added"
    opened.close()
    assert (in_child(added_by_another), count_actions(opened)) == ("added", 3 if server else 2)
    opened.close()


def test_a_transaction_within_one_is_refused_with_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    url = empty_database("sqlite", tmp_path)
    with Database.open(url, upgrade=True) as opened:
        with opened.write():
            assert told(opened.write().__enter__)[0] is StoreError
        assert add_action(opened) == "added"
