"""One database, opened: reads and transactions on it, and no error of its driver let out.

Every transaction that writes is whole and on the disk when it returns, before a tool runs: SQLite in WAL mode with
`synchronous=FULL`, and as PostgreSQL's `synchronous_commit` says (keep it on). One that is not `durable` does not wait
for the disk of SQLite: it outlives the process, and perhaps not a power failure.

Open a database after the last fork. Neither SQLite's locks nor a connection to a server survive a fork, so what was
opened before one is refused in the child, and so is a SQLite file that the parent had open.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from pdp.documents.arguments import Closable
from pdp.errors import StoreError, UsageError
from pdp.installed import extra
from pdp.stores.sql.tables import SCHEMA, check_schema, upgrade_schema, versions

BUSY_SECONDS: Final = 5  # how long one step waits for another process that holds the database, before it fails
TURN_SECONDS: Final = 2 * BUSY_SECONDS
"""How long one step waits for other threads of its process that use the database, before it fails."""

_HINT: Final = "write sqlite:///path/to/file.db or postgresql://user@host/database"
_HELD_HINT: Final = "check that it is there, and not held by another"
_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE: Final = ("sqlite", "sqlite+pysqlite")
_READS: Final = "pdp_reads"
_DURABLE: Final = "pdp_durable"
_WAIT: Final = "pdp_wait"
_HELD_SECONDS: Final = 0.1  # that a step waits when the step before it has waited in vain
_POOL: Final = 8

_opened_by: dict[str, int] = {}
"""The process that has each SQLite file open."""

_turns: dict[str, threading.RLock] = {}
"""What the threads of this process that write to a SQLite file wait for."""


class Database(Closable):
    """A database, made by `open`, whose tables are those of this release. Safe to share between threads.

    Give the stores of one enforcement point the same one: then an approval and an idempotency key are used up in one
    transaction. `name` is the URL for people, its password hidden; `dialect` is `sqlite` or `postgresql`.
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
        self._direct: sqlite3.Connection | None = None
        self._is_held = False  # whether another process held it at the last try
        # SQLite's own waiting is not fair: of several threads that write, one may wait until its time is over.
        self._turn = _turns.setdefault(self._place, threading.RLock()) if self.dialect == "sqlite" else None

    @classmethod
    def open(cls, url: str, *, upgrade: bool = False) -> Self:
        """Open a database.

        Args:
            url: `sqlite:///path/to/file.db` or `postgresql://user@host/database`.
            upgrade: make the file (readable by its owner only) and the tables, or bring older ones up to date. Without
                it, a database that has not the tables of this release is an error; tables of a newer one always are.

        UsageError: the URL cannot be used; StoreSchemaError: the tables are older or newer than this release;
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

    def read(self) -> AbstractContextManager[Connection]:
        """Return a connection for one statement that reads what is committed, as a context manager."""
        return self._opened(self._reader, None)

    def write(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """Return a transaction as a context manager: committed at its end, rolled back on any exception.

        `durable`: whether it waits for the disk, see above.

        SQLite admits one writer at a time, in any process; PostgreSQL reads what is committed and locks rows. Do not
        fork within it.

        StoreError: it could not be begun, or not committed. Then what was written may or may not be there.
        """
        return self._opened(self._engine if durable else self._not_durable, self._turn)

    def check(self) -> str:
        """Return the revision of the tables, which can be written to.

        StoreSchemaError: they are of another release than this; StoreError: they cannot be written to.
        """
        with self.write(durable=False) as connection:
            check_schema(connection, self.name)
            # An empty transaction is not written, so it would not notice a full disk.
            connection.execute(versions.insert().values(version_num="check"))
            connection.execute(versions.delete().filter_by(version_num="check"))
        return SCHEMA

    def joined(self, within: object) -> AbstractContextManager[Connection]:
        """Return the transaction `within` where it is one of this database, and else one of its own, as of `write`."""
        if isinstance(within, Connection) and self.owns(within):
            return nullcontext(within)
        return self.write()

    @contextmanager
    def write_at_once(self) -> Iterator[sqlite3.Cursor | None]:
        """Return a transaction of SQLite that is not durable, as `write`, if nobody has to be waited for.

        None: another thread or process writes, or the database is a server. Raises as `write`, which has to follow now
        and then, as SQLite's log only grows by this.
        """
        self._check_process()
        if self._turn is None or not self._turn.acquire(blocking=False):
            yield None
            return
        try:
            if self._direct is None:
                # A connection of its own: through SQLAlchemy a small transaction takes three times as long.
                path = str(self.url.database)
                self._direct = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
                self._direct.execute("PRAGMA synchronous = NORMAL")
                # Bringing SQLite's log up to date waits for the disk; `write` does it.
                self._direct.execute("PRAGMA wal_autocheckpoint = 0")
            try:
                cursor = self._direct.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                yield None
                return
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._direct.in_transaction:
                    cursor.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(f"database {self.name}: {error}", hint=_HELD_HINT) from error
        finally:
            self._turn.release()

    def owns(self, connection: Connection) -> bool:
        """Return whether a connection is one to this database: opened here, or by the same URL."""
        return connection.engine.pool is self._engine.pool or _place_of(connection.engine.url) == self._place

    def close(self) -> None:
        """Close its connections. A database that is used afterwards opens them again."""
        if os.getpid() == self._process:
            self._engine.dispose()
            if self._direct is not None:
                self._direct.close()
                self._direct = None
            _opened_by.pop(self._place, None)

    @contextmanager
    def _opened(self, engine: Engine, turn: threading.RLock | None) -> Iterator[Connection]:
        # Before the turn: in a child, a thread of the parent may seem to have it for ever.
        self._check_process()
        if turn is not None and not turn.acquire(timeout=TURN_SECONDS):
            raise StoreError(f"database {self.name}: other threads hold it", hint="another process may hold it as well")
        if turn is not None and self._is_held:
            engine = engine.execution_options(**{_WAIT: _HELD_SECONDS})
        try:
            with engine.begin() as connection:
                self._is_held = self._is_held and turn is None
                yield connection
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            # The driver's words alone: SQLAlchemy's hold the statement's parameters too.
            driver = getattr(error, "orig", None) if isinstance(error, SQLAlchemyError) else error
            self._is_held |= getattr(driver, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            words = str(driver or type(error).__name__).strip().split("\n")[0]
            raise StoreError(f"database {self.name}: {words}", hint=_HELD_HINT) from error
        finally:
            if turn is not None:
                turn.release()

    def _check_process(self) -> None:
        process = os.getpid()
        opened_by = _opened_by.setdefault(self._place, process) if self.dialect == "sqlite" else self._process
        if not process == self._process == opened_by:
            raise StoreError(
                f"database {self.name}: it was opened before this process was forked",
                hint="open it after the fork, and not in the parent before",
            )


class DatabaseStore:
    """What is stored in a database, as all of it is."""

    blocking = True

    def __init__(self, database: Database) -> None:
        self._database = database


def read_url(text: str) -> URL:
    """Return the database that a URL names, with the driver that is used for it.

    UsageError: not such a URL, a SQLite database in memory, or PostgreSQL without its driver.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        # The text itself may hold a password.
        raise UsageError("the database URL cannot be read", hint=_HINT) from None
    if url.drivername in _SQLITE:
        if not url.database or url.database == ":memory:" or url.query:
            raise UsageError("the database URL cannot be used: SQLite is a file here, without options", hint=_HINT)
        return url.set(drivername="sqlite+pysqlite", database=os.path.abspath(url.database))  # noqa: PTH100 - no file yet
    if url.drivername in _POSTGRESQL:
        with extra("postgres"):
            import psycopg  # noqa: F401, PLC0415 - an optional extra
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"database {_shown(url)}: {url.drivername} is not supported", hint=_HINT)


def _shown(url: URL) -> str:
    """Return the URL for people: its password hidden, and without the driver."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _engine(url: URL) -> Engine:
    """Return SQLAlchemy's engine. All waits are bounded: a database that hangs is a failure and not a pause."""
    pool: dict[str, Any] = {"pool_size": _POOL, "max_overflow": 0, "pool_timeout": TURN_SECONDS}
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, **pool)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    milliseconds = BUSY_SECONDS * 1000
    bounds = {
        "connect_timeout": BUSY_SECONDS,
        # The last one frees what a stopped process has locked: the server ends its transaction.
        "options": f"-c lock_timeout={milliseconds} -c statement_timeout={4 * milliseconds}"
        f" -c idle_in_transaction_session_timeout={4 * milliseconds}",
        # A server, or a network, that is not there any more: psycopg itself has no deadline.
        "tcp_user_timeout": 4 * milliseconds,
    }
    stated = {name: value for name, value in bounds.items() if name not in url.query}
    # A connection to a server may have been lost since its last use; a file is always there.
    return create_engine(url, connect_args=stated, isolation_level="READ COMMITTED", pool_pre_ping=True, **pool)


def _check_file(path: Path, *, make: bool) -> None:
    if path.is_file():
        return
    if not make:
        raise UsageError(f"database file {path} is not there", hint="run `pdp db upgrade`")
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UsageError(
            f"database file {path} cannot be made: {error.strerror}", hint="check folder and permissions"
        ) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver would begin transactions by itself, late and for some statements only.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that began by reading could not become one that writes when another has written since.
    options = connection.get_execution_options()
    if not options.get(_READS):
        # By the driver alone, as half of a small transaction's time would else be SQLAlchemy's.
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout = {1000 * options.get(_WAIT, BUSY_SECONDS):.0f}")
        driver.execute(f"PRAGMA synchronous = {'FULL' if options.get(_DURABLE, True) else 'NORMAL'}")
        driver.execute("BEGIN IMMEDIATE")


def _place_of(url: URL) -> str:
    """Return what two URLs of one database share: the file itself, or the whole URL of a server."""
    return url.render_as_string() if url.get_backend_name() == "postgresql" else os.path.realpath(str(url.database))
