"""Opening and upgrading a database, transactions of threads and processes, and error messages."""

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
UPGRADE = "(make a backup, then run `pdp db upgrade URL`)"
LOCKED = "(check the URL, the password and the disk, and that no other process has locked the database)"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return empty_database(request.param, tmp_path)


def error_of(step: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(PdpError) as caught:
        step()
    return type(caught.value), str(caught.value)


def test_migrations_create_the_columns_that_queries_use(url: str) -> None:
    with Database.open(url, upgrade=True) as opened, opened.read() as connection:
        for table in (
            tables.idempotency, tables.actions, tables.approvals, tables.runs, tables.run_values, tables.ledger_key,
            tables.budgets, tables.reservations,
        ):  # fmt: skip
            made = {column["name"] for column in inspect(connection).get_columns(table.name)}
            assert made == set(table.columns.keys())


def test_expected_schema_version_equals_the_version_of_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(tables._MIGRATIONS))
    config.set_main_option("path_separator", "os")

    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def test_second_database_upgrade_changes_nothing(url: str) -> None:
    for _ in range(2):
        with Database.open(url, upgrade=True) as opened, opened.write() as connection:
            connection.execute(
                text("INSERT INTO pdp_actions (id, key_id, state, record) VALUES (:id, :id, 'staged', '')"),
                {"id": str(_)},
            )
    with Database.open(url) as opened, opened.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 2


def test_tables_of_an_older_release_are_upgraded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(tables, "SCHEMA", "0001")
        with Database.open(url, upgrade=True) as opened:
            add_action(opened)
            name = opened.name
    message = f"database {name}: its tables have revision 0001, but this release needs {SCHEMA} {UPGRADE}"
    assert error_of(lambda: Database.open(url)) == (StoreSchemaError, message)

    with Database.open(url, upgrade=True) as opened, opened.read() as connection:
        assert (revision_of(connection), count_actions(opened)) == (SCHEMA, 1)


def test_concurrent_database_upgrades_succeed(url: str) -> None:
    def work() -> str:
        with Database.open(url, upgrade=True) as opened:
            return opened.dialect

    assert len(at_once([work] * 6)) == 6


NEWER = (
    f"its tables have revision 9999, but this release needs {SCHEMA} "
    "(use a newer release of tool-pdp; a downgrade is not supported)"
)


@pytest.mark.parametrize(
    ("statement", "upgrade", "fault"),
    [
        ("DROP TABLE pdp_schema", False, "it has no tables yet (run `pdp db upgrade URL`)"),
        ("UPDATE pdp_schema SET version_num = '0000'", False,
         f"its tables have revision 0000, but this release needs {SCHEMA} {UPGRADE}"),
        *[("UPDATE pdp_schema SET version_num = '9999'", upgrade, NEWER) for upgrade in (False, True)],
    ],
)  # fmt: skip
def test_tables_of_another_release_raise_an_error(url: str, statement: str, upgrade: bool, fault: str) -> None:
    with Database.open(url, upgrade=True) as opened, opened.write() as connection:
        name = opened.name
        connection.execute(text(statement))

    assert error_of(lambda: Database.open(url, upgrade=upgrade)) == (StoreSchemaError, f"database {name}: {fault}")


def test_failed_upgrade_is_rolled_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_upgrade(connection: Connection, name: str) -> None:
        tables.upgrade_schema(connection, name)
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "upgrade_schema", failing_upgrade)
        with pytest.raises(OSError, match="away"):
            Database.open(url, upgrade=True)
    assert error_of(lambda: Database.open(url))[1].endswith("it has no tables yet (run `pdp db upgrade URL`)")
    Database.open(url, upgrade=True).close()


def test_only_an_upgrade_creates_a_file_readable_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert error_of(lambda: Database.open(f"sqlite:///{path}")) == (
        UsageError, f"database file {path} does not exist (check the path; `pdp db upgrade URL` creates a database)",
    )  # fmt: skip
    assert not path.exists()
    with Database.open(f"sqlite:///{path}", upgrade=True) as opened, opened.write():
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}

    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_relative_path_names_the_same_file_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///store.db", upgrade=True) as opened:
        monkeypatch.chdir("/")
        opened.close()
        with opened.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 0
    assert (tmp_path / "store.db").is_file()


def test_sqlite_uses_wal_mode_and_waits_for_the_disk(tmp_path: Path) -> None:
    def pragmas(connection: Connection) -> list[Any]:
        return [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]

    with Database.open(empty_database("sqlite", tmp_path), upgrade=True) as opened:
        for transaction, waits in ((opened.read(), 2), (opened.write(durable=False), 1), (opened.write(), 2)):
            with transaction as connection:
                assert pragmas(connection) == ["wal", waits]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *[(url, "the database URL cannot be read") for url in ("nonsense", "")],
        *[(url, "the database URL cannot be used: SQLite needs a file path and no options")
          for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///a.db?mode=ro")],
        ("mysql://root:secret@db/x", "database mysql://root:***@db/x: mysql is not supported"),
        ("sqlite+aiosqlite:///a.db", "database sqlite:///a.db: sqlite+aiosqlite is not supported"),
    ],
)  # fmt: skip
def test_unsupported_url_raises_an_error(url: str, message: str) -> None:
    assert error_of(lambda: Database.open(url, upgrade=True)) == (UsageError, f"{message} {HINT}")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_all_postgresql_schemes_use_psycopg(scheme: str) -> None:
    url = read_url(f"{scheme}://me:secret@db/x?connect_timeout=3")

    assert url.render_as_string(hide_password=False) == "postgresql+psycopg://me:secret@db/x?connect_timeout=3"


def test_missing_postgresql_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'tool-pdp\[postgres\]'"):
        Database.open("postgresql://me:secret@db/x")


def test_upgrade_in_a_missing_folder_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none" / "store.db"

    assert error_of(lambda: Database.open(f"sqlite:///{path}", upgrade=True)) == (
        UsageError,
        f"database file {path} cannot be created: No such file or directory (check the folder and its permissions)",
    )


def test_file_that_is_not_a_database_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("a text, and quite long enough to be looked at by SQLite, which reads a hundred bytes of it" * 9)

    for upgrade in (False, True):
        assert error_of(lambda upgrade=upgrade: Database.open(f"sqlite:///{path}", upgrade=upgrade)) == (  # type: ignore[misc]
            StoreError,
            f"database sqlite:///{path}: file is not a database {LOCKED}",
        )


def test_missing_server_raises_an_error_without_the_password(tmp_path: Path) -> None:
    kind, message = error_of(lambda: Database.open(f"postgresql://me:secret@/x?host={tmp_path}"))

    assert kind is StoreError
    assert message.startswith("database postgresql://me:***@/x?host=")
    assert message.endswith(LOCKED)
    assert "secret" not in message


def test_locked_database_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    with Database.open(f"sqlite:///{path}", upgrade=True) as opened:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        kind, message = error_of(opened.write().__enter__)
        holder.close()

        assert (kind, message) == (
            StoreError,
            f"database sqlite:///{path}: database is locked {LOCKED}",
        )
        with opened.write() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1


def test_write_times_out_while_another_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "TURN_SECONDS", 0.05)
    url = f"sqlite:///{tmp_path}/store.db"
    with Database.open(url, upgrade=True) as opened, ThreadPoolExecutor(1) as threads:
        with opened.write():
            refusal = threads.submit(error_of, opened.write().__enter__).result()
        assert threads.submit(add_action, opened).result() == "added"

    assert refusal == (
        StoreError, (f"database {url}: other threads have locked the database (another process may also have "
                    f"locked the database)"),
    )  # fmt: skip


@pytest.mark.process
def test_server_ends_the_transaction_of_a_stopped_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = empty_database("postgresql", tmp_path)
    lock = text("LOCK TABLE pdp_actions IN ACCESS EXCLUSIVE MODE")
    with ExitStack() as opened:
        second = opened.enter_context(Database.open(url, upgrade=True))
        monkeypatch.setattr(database_module, "BUSY_SECONDS", 1)
        stopped = opened.enter_context(Database.open(url))
        # The transaction stays open, as if the process had stopped.
        transaction = stopped.write()
        transaction.__enter__().execute(lock)
        with second.write() as connection:
            connection.execute(lock)
        with pytest.raises(StoreError, match="idle-in-transaction timeout"):
            transaction.__exit__(None, None, None)


@pytest.mark.parametrize("way", ["the same path", "a link"])
def test_transactions_of_two_databases_on_one_file_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    path, other_path = tmp_path / "store.db", tmp_path / "store.db"
    if way == "a link":
        other_path = tmp_path / "link.db"
        other_path.symlink_to(path)
    with (
        Database.open(f"sqlite:///{path}", upgrade=True) as first,
        Database.open(f"sqlite:///{other_path}") as second,
        ThreadPoolExecutor(1) as threads,
    ):

        def write() -> Any:
            with second.write() as connection:
                return connection.execute(text("SELECT 1")).scalar()

        with first.write() as connection:
            assert (first.owns(connection), second.owns(connection)) == (True, True)
            waiting = threads.submit(write)
            # SQLite itself would fail after `BUSY_SECONDS`, so the longer wait shows that the threads take turns.
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert waiting.result(PATIENCE) == 1


def test_transactions_of_databases_on_two_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with (
        Database.open(f"sqlite:///{tmp_path}/one.db", upgrade=True) as first,
        Database.open(f"sqlite:///{tmp_path}/other.db", upgrade=True) as second,
        ThreadPoolExecutor(1) as threads,
        first.write() as connection,
    ):
        assert not second.owns(connection)

        def write() -> Any:
            with second.write() as own:
                return own.execute(text("SELECT 1")).scalar()

        assert threads.submit(write).result(PATIENCE) == 1


def test_error_of_a_failed_write_does_not_contain_the_data(url: str) -> None:
    with Database.open(url, upgrade=True) as opened:

        def write() -> None:
            with opened.write() as connection:
                connection.execute(
                    text("INSERT INTO pdp_actions (id, key_id, state, record) VALUES ('a', 'a', :state, 'secret')"),
                    {"state": "secret"},
                )

        kind, message = error_of(write)
        assert kind is StoreError
        assert "secret" not in message
        with opened.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM pdp_actions")).scalar() == 0


def test_connection_ended_by_the_server_is_replaced() -> None:
    with (
        Database.open(empty_database("postgresql", Path()), upgrade=True) as opened,
        Database.open(server(), upgrade=True) as second,
    ):
        with second.write() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
                {"name": opened.url.database},
            )
        with opened.write() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1


def in_child(step: Callable[[], str]) -> str:
    """Run `step` in a forked child process. Return the result of `step` or the text of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = step()
        except BaseException as error:  # noqa: BLE001 - the parent receives every error
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


# Python 3.12 warns if a process with several threads forks. The tests fork such a process on purpose.
may_fork_beside_threads = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.process
@may_fork_beside_threads
def test_child_process_cannot_use_a_database_opened_before_the_fork(url: str) -> None:
    def added_by_another() -> str:
        with Database.open(url) as another:
            return add_action(another)

    opened = Database.open(url, upgrade=True)
    refusal = f"StoreError: database {opened.name}: it was opened before this process was forked "
    refusal += "(open the database after the fork, and not in the parent process)"
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


def test_nested_sqlite_transaction_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    url = empty_database("sqlite", tmp_path)
    with Database.open(url, upgrade=True) as opened:
        with opened.write():
            assert error_of(opened.write().__enter__)[0] is StoreError
        assert add_action(opened) == "added"
