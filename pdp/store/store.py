"""One database, opened: reads and transactions on it, and no error of its driver let out.

Every transaction that writes is whole and on the disk when it returns, before a tool runs: SQLite in WAL mode with
`synchronous=FULL`, and as PostgreSQL's `synchronous_commit` says (keep it on).
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet, WeakValueDictionary

from sqlalchemy import create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from pdp.errors import UsageError
from pdp.store.database_url import BUSY_SECONDS, connect_options, read_url, shown
from pdp.store.errors import StoreError
from pdp.store.upgrading import check_schema, upgrade_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from sqlalchemy import URL, Connection, Engine

_READS: Final = "pdp_reads"
_POOL: Final = 8


class Store:
    """A database whose tables are those of this release. Safe to share between threads, and to fork with.

    Made by `Store.open`. Several on one database are as good as one: they take turns, and know each other's
    transactions.
    """

    def __init__(self, url: URL, engine: Engine) -> None:
        self.url = url
        self._engine = engine
        options: dict[str, Any] = {_READS: True}
        if engine.dialect.name == "postgresql":
            options["isolation_level"] = "AUTOCOMMIT"
        self._reader = engine.execution_options(**options)
        self._place = _place_of(url)
        self._turn = _turn_at(self._place)
        _stores.add(self)

    @classmethod
    def open(cls, url: str, *, upgrade: bool = False) -> Self:
        """Open a database.

        Args:
            url: `sqlite:///path/to/file.db` or `postgresql://user@host/database`.
            upgrade: make the file (readable by its owner only) and the tables, or bring older ones up to date. Without
                it, a database that has not the tables of this release is an error; tables of a newer one always are.

        Raises:
            UsageError: the URL cannot be used.
            SchemaError: the tables are older or newer than this release.
            StoreError: the database cannot be reached.
        """
        address = read_url(url)
        if address.get_backend_name() == "sqlite":
            _check_file(Path(str(address.database)), make=upgrade)
        engine = _engine(address)
        store = cls(address, engine)
        try:
            if upgrade:
                with store.write() as connection:
                    upgrade_schema(connection, store.name)
            with store.read() as connection:
                check_schema(connection, store.name)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """The URL for people, its password hidden."""
        return shown(self.url)

    @property
    def dialect(self) -> str:
        """Which database it is: `sqlite` or `postgresql`."""
        return self._engine.dialect.name

    def read(self) -> AbstractContextManager[Connection]:
        """Return a connection for one statement that reads what is committed, as a context manager."""
        return self._opened(self._reader)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Return a transaction as a context manager: committed at its end, rolled back on any exception.

        SQLite admits one writer at a time, in any process; PostgreSQL reads what is committed and locks rows.

        Raises:
            StoreError: it could not be begun, or not committed. Then what was written may or may not be there.
        """
        with self._turn, self._opened(self._engine) as connection:
            yield connection

    def owns(self, connection: Connection) -> bool:
        """Return whether the connection is one to this database, of whichever store on it."""
        own = connection.engine.pool is self._engine.pool
        return own or _place_of(connection.engine.url) == self._place

    @contextmanager
    def _opened(self, engine: Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._failed(error) from error

    def _failed(self, error: SQLAlchemyError) -> StoreError:
        # The driver's words alone: SQLAlchemy's hold the statement's parameters too.
        told = str(getattr(error, "orig", None) or type(error).__name__).strip().split("\n")[0]
        return StoreError(f"database {self.name}: {told}", hint="check that it is there, and not held by another")

    def close(self) -> None:
        """Close its connections. A store that is used afterwards opens them again."""
        self._engine.dispose()

    def _in_child(self) -> None:
        """Begin anew after a fork: connections are the parent's, and two processes must not share one."""
        self._turn = _turn_at(self._place)
        self._engine.dispose(close=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _engine(url: URL) -> Engine:
    postgresql = url.get_backend_name() == "postgresql"
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if postgresql else {}
    engine = create_engine(
        url,
        connect_args=connect_options(url),
        pool_size=_POOL,
        max_overflow=0,
        pool_timeout=3 * BUSY_SECONDS,
        # A connection to a server may have been lost since its last use; a file is always there.
        pool_pre_ping=postgresql,
        **options,
    )
    if not postgresql:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


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
    if not connection.get_execution_options().get(_READS):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _place_of(url: URL) -> URL:
    """Return the URL by which stores on one database are known: that of the file itself, whatever leads to it."""
    if url.get_backend_name() == "postgresql":
        return url
    return url.set(database=os.path.realpath(str(url.database)))


def _turn_at(place: URL) -> AbstractContextManager[Any]:
    """Return what the writers of a database take turns by, the same for all of its stores in this process.

    SQLite's own waiting is not fair: of many threads that write, one may wait until its time is over.
    """
    if place.get_backend_name() == "postgresql":
        return nullcontext()
    with _turns_lock:
        turn = _turns.get(place)
        if turn is None:
            turn = _turns[place] = threading.RLock()
        return turn


_stores: WeakSet[Store] = WeakSet()
_turns: WeakValueDictionary[URL, Any] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _after_fork() -> None:
    global _turns_lock  # noqa: PLW0603 - another thread of the parent may have held it
    _turns_lock = threading.Lock()
    _turns.clear()
    for store in list(_stores):
        store._in_child()  # noqa: SLF001 - this module's own


os.register_at_fork(after_in_child=_after_fork)
