"""An open database: connections and transactions. Errors of the database driver are raised as `StoreError`.

A transaction is complete and on the disk when its block ends, before a tool runs. SQLite uses WAL mode with
`synchronous=FULL`; PostgreSQL follows its `synchronous_commit`, which should stay on. A transaction that is not
`durable` does not wait for the disk of SQLite, so its data may be lost in a power failure, but not in a process crash.

Open a database after the last fork, because neither SQLite's locks nor connections to a server survive a fork. A child
process cannot use a database that was opened before the fork, or a SQLite file that its parent had open.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from pdp.documents.arguments import Closable
from pdp.errors import StoreError, UsageError
from pdp.installed import extra
from pdp.stores.sql.tables import SCHEMA, check_schema, upgrade_schema, versions

# A store operation waits at most this many seconds for another process that locks the database.
BUSY_SECONDS: Final = 5
TURN_SECONDS: Final = 2 * BUSY_SECONDS
"""Seconds that a step waits for other threads of its process that use the database."""

_HINT: Final = "write sqlite:///path/to/file.db or postgresql://user@host/database"
_HELD_HINT: Final = "check the URL, the password and the disk, and that no other process has locked the database"
_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE: Final = ("sqlite", "sqlite+pysqlite")
_READS: Final = "pdp_reads"
_DURABLE: Final = "pdp_durable"
_WAIT: Final = "pdp_wait"
_HELD_SECONDS: Final = 0.1  # If the previous operation waited in vain, the next one waits only this many seconds.
_POOL: Final = 8

_opened_by: dict[str, int] = {}
"""The process that opened each SQLite file."""

_turns: dict[str, threading.RLock] = {}
"""The lock that serialises the writing threads of this process, for each SQLite file."""


Observer = Callable[[str, float, bool], object]


@dataclass(slots=True)
class _Shared:
    """The state that a database shares with the objects that `Database.of` returns."""

    direct: sqlite3.Connection | None = None
    is_held: bool = False  # Whether the database was locked by another process at the last attempt.
    observer: Observer = lambda *_: None


class Database(Closable):
    """A database with the tables of this release; create the object with `open`. Thread-safe.

    Use the same database for all stores of an enforcement point, so that an approval and an idempotency key are used up
    in one transaction.

    Attributes:
        name: the URL without its password.
        dialect: `sqlite` or `postgresql`.

    Examples:
        >>> with Database.open("sqlite:///agent.db", upgrade=True) as database:
        ...     database.dialect
        'sqlite'
    """

    def __init__(self, url: URL, engine: Engine) -> None:
        self.url = url
        self.name = _shown(url)
        self.dialect = engine.dialect.name
        self._engine = engine
        self._process = os.getpid()
        options: dict[str, Any] = {_READS: True}
        if self.dialect == "postgresql":
            options["isolation_level"] = "AUTOCOMMIT"
        self._reader = engine.execution_options(**options)
        self._not_durable = engine.execution_options(**{_DURABLE: False})
        self._place = _place_of(url)
        self.shared = _Shared()
        self._store = ""
        # Threads take turns by this lock, because waiting in SQLite is not fair: one of several writing threads may
        # wait until it times out.
        self._turn = _turns.setdefault(self._place, threading.RLock()) if self.dialect == "sqlite" else None

    @classmethod
    def open(cls, url: str, *, upgrade: bool = False) -> Self:
        """Open a database.

        Args:
            url: `sqlite:///path/to/file.db` or `postgresql://user@host/database`.
            upgrade: create the tables, or migrate older tables; a new SQLite file is readable by its owner only.
                Without `upgrade`, older tables are an error. Newer tables are always an error.

        Raises:
            UsageError: the URL cannot be used.
            StoreSchemaError: the tables are missing, or older or newer than this release.
            StoreError: the database cannot be reached.
        """
        address = read_url(url)
        if address.get_backend_name() == "sqlite":
            _check_file(Path(str(address.database)), make=upgrade)
        database = cls(address, _engine(address))
        try:
            if upgrade:
                with database.write() as connection:
                    upgrade_schema(connection, database.name)
            with database.read() as connection:
                check_schema(connection, database.name)
        except BaseException:
            database.close()
            raise
        return database

    def of(self, store: str) -> Self:
        """Return this database for one store, whose name its observer gets."""
        named = copy(self)
        named._store = store  # noqa: SLF001 - its own class
        return named

    def read(self) -> AbstractContextManager[Connection]:
        """Return a context manager with a connection for one query, which sees only committed data."""
        return self._opened(self._reader, None)

    def write(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """Return a context manager with a transaction, which is committed at its end and rolled back on an exception.

        SQLite allows only one writer at a time, among all processes. Do not fork within the block.

        Args:
            durable: wait until the transaction is on the disk.

        Raises:
            StoreError: the transaction could not begin or commit. After a failed commit, the data may or may not be
                stored.
        """
        return self._opened(self._engine if durable else self._not_durable, self._turn)

    def check(self) -> str:
        """Check that the tables belong to this release and can be written, and return their revision.

        Raises:
            StoreSchemaError: the tables belong to another release.
            StoreError: the tables cannot be written.
        """
        with self.write(durable=False) as connection:
            check_schema(connection, self.name)
            # The check writes a row, because an empty transaction is not written and would not detect a full disk.
            connection.execute(versions.insert().values(version_num="check"))
            connection.execute(versions.delete().filter_by(version_num="check"))
        return SCHEMA

    def joined(self, within: object) -> AbstractContextManager[Connection]:
        """Return a context manager with the transaction `within` if it is of this database, else with a new one."""
        if isinstance(within, Connection) and self.owns(within):
            return nullcontext(within)
        return self.write()

    @contextmanager
    def write_at_once(self) -> Iterator[sqlite3.Cursor | None]:
        """Return a context manager with a fast SQLite transaction that is not durable; None if a lock prevents that.

        For PostgreSQL, return None. Also call `write` now and then, because only `write` shortens SQLite's log.
        """
        self._check_process()
        if self._turn is None or not self._turn.acquire(blocking=False):
            yield None
            return
        shared, began = self.shared, time.perf_counter()
        try:
            if shared.direct is None:
                # This connection bypasses SQLAlchemy, which would make a small transaction three times as long.
                path = str(self.url.database)
                shared.direct = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
                shared.direct.execute("PRAGMA synchronous = NORMAL")
                # `write` makes the checkpoints of SQLite's log itself, because they wait for the disk.
                shared.direct.execute("PRAGMA wal_autocheckpoint = 0")
            try:
                cursor = shared.direct.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                yield None
                return
            is_failed = True
            try:
                yield cursor
                cursor.execute("COMMIT")
                is_failed = False
            except BaseException:
                if shared.direct.in_transaction:
                    cursor.execute("ROLLBACK")
                raise
            finally:
                shared.observer(self._store, time.perf_counter() - began, is_failed)
        except sqlite3.Error as error:
            raise StoreError(f"database {self.name}: {error}", hint=_HELD_HINT) from error
        finally:
            self._turn.release()

    def owns(self, connection: Connection) -> bool:
        """Return whether a connection is to this database."""
        return connection.engine.pool is self._engine.pool or _place_of(connection.engine.url) == self._place

    def close(self) -> None:
        """Close the connections. The next use opens new connections."""
        if os.getpid() == self._process:
            self._engine.dispose()
            if self.shared.direct is not None:
                self.shared.direct.close()
                self.shared.direct = None
            _opened_by.pop(self._place, None)

    @contextmanager
    def _opened(self, engine: Engine, turn: threading.RLock | None) -> Iterator[Connection]:
        # The check comes before the lock, because in a forked process a thread of the parent may hold the lock for
        # ever.
        self._check_process()
        if turn is not None and not turn.acquire(timeout=TURN_SECONDS):
            raise StoreError(
                f"database {self.name}: other threads have locked the database",
                hint="another process may also have locked the database",
            )
        shared, began, is_failed = self.shared, time.perf_counter(), engine is not self._reader
        if turn is not None and shared.is_held:
            engine = engine.execution_options(**{_WAIT: _HELD_SECONDS})
        try:
            with engine.begin() as connection:
                shared.is_held = shared.is_held and turn is None
                yield connection
            is_failed = False
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            # Only the driver's message is used, because SQLAlchemy's message contains the statement's parameters.
            driver = getattr(error, "orig", None) if isinstance(error, SQLAlchemyError) else error
            shared.is_held |= getattr(driver, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            message = str(driver or type(error).__name__).strip().split("\n")[0]
            raise StoreError(f"database {self.name}: {message}", hint=_HELD_HINT) from error
        finally:
            if turn is not None:
                turn.release()
            shared.observer(self._store, time.perf_counter() - began, is_failed)

    def _check_process(self) -> None:
        process = os.getpid()
        opened_by = _opened_by.setdefault(self._place, process) if self.dialect == "sqlite" else self._process
        if not process == self._process == opened_by:
            raise StoreError(
                f"database {self.name}: it was opened before this process was forked",
                hint="open the database after the fork, and not in the parent process",
            )


class DatabaseStore:
    """Base class of the stores in a database."""

    blocking = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def observe(self, observer: Observer) -> None:
        """Call `observer` after each transaction of the open database: store, seconds, whether it is a failed write."""
        self._database.shared.observer = observer


def read_url(text: str) -> URL:
    """Return the parsed database URL, with its driver. Raise `UsageError` for an unusable URL, or SQLite in memory."""
    try:
        url = make_url(text)
    except ArgumentError:
        # The message omits the URL, because it may contain a password.
        raise UsageError("the database URL cannot be read", hint=_HINT) from None
    if url.drivername in _SQLITE:
        if not url.database or url.database == ":memory:" or url.query:
            raise UsageError("the database URL cannot be used: SQLite needs a file path and no options", hint=_HINT)
        return url.set(drivername="sqlite+pysqlite", database=os.path.abspath(url.database))  # noqa: PTH100 - no file yet
    if url.drivername in _POSTGRESQL:
        with extra("postgres"):
            import psycopg  # noqa: F401, PLC0415 - an optional extra
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"database {_shown(url)}: {url.drivername} is not supported", hint=_HINT)


def _shown(url: URL) -> str:
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _engine(url: URL) -> Engine:
    """Return SQLAlchemy's engine with a limit for every wait, so that a hanging database causes an error."""
    pool: dict[str, Any] = {"pool_size": _POOL, "max_overflow": 0, "pool_timeout": TURN_SECONDS}
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, **pool)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    milliseconds = BUSY_SECONDS * 1000
    bounds = {
        "connect_timeout": BUSY_SECONDS,
        # The last setting releases the locks of a stopped process, because the server then ends its transaction.
        "options": f"-c lock_timeout={milliseconds} -c statement_timeout={4 * milliseconds}"
        f" -c idle_in_transaction_session_timeout={4 * milliseconds}",
        # psycopg itself sets no time limit for a server or network that disappears.
        "tcp_user_timeout": 4 * milliseconds,
    }
    defaults = {name: value for name, value in bounds.items() if name not in url.query}
    # Each connection is tested before it is used again, because it may have been lost in the meantime.
    return create_engine(url, connect_args=defaults, isolation_level="READ COMMITTED", pool_pre_ping=True, **pool)


def _check_file(path: Path, *, make: bool) -> None:
    if path.is_file():
        return
    if not make:
        raise UsageError(
            f"database file {path} does not exist", hint="check the path; `pdp db upgrade URL` creates a database"
        )
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UsageError(
            f"database file {path} cannot be created: {error.strerror}", hint="check the folder and its permissions"
        ) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver's own transactions are switched off, because it begins them late and only for some statements.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # BEGIN IMMEDIATE is used, because a transaction that starts with a read cannot write after another process has
    # written.
    options = connection.get_execution_options()
    if not options.get(_READS):
        # The driver runs these statements directly, because SQLAlchemy would add half of a small transaction's time.
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout = {1000 * options.get(_WAIT, BUSY_SECONDS):.0f}")
        driver.execute(f"PRAGMA synchronous = {'FULL' if options.get(_DURABLE, True) else 'NORMAL'}")
        driver.execute("BEGIN IMMEDIATE")


def _place_of(url: URL) -> str:
    """Return a text that identifies a database: the real path of a file, or the URL of a server."""
    return url.render_as_string() if url.get_backend_name() == "postgresql" else os.path.realpath(str(url.database))
