"""One database, opened: reads and transactions on it, and no error of its driver let out.

Every transaction that writes is whole and on the disk when it returns, before a tool runs: SQLite in WAL mode with
`synchronous=FULL`, and as PostgreSQL's `synchronous_commit` says (keep it on).
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from pdp.errors import UsageError
from pdp.stores.errors import StoreError
from pdp.stores.sql.fork_gate import ForkGate
from pdp.stores.sql.turns import Turns
from pdp.stores.sql.upgrade import check_schema, upgrade_schema
from pdp.stores.sql.url import BUSY_SECONDS, connect_options, read_url, shown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from sqlalchemy import URL, Connection, Engine

_READS: Final = "pdp_reads"
_POOL: Final = 8
# The server, the database, and the very table: two URLs may lead to one database and differ in their schema, and a
# server that was cloned has the identifier of its original.
_IDENTITY: Final = """
    SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time(),
           (SELECT oid FROM pg_database WHERE datname = current_database()), to_regclass('pdp_approvals')::oid
"""


class Store:
    """A database whose tables are those of this release. Safe to share between threads.

    Made by `Store.open`. Several on one database are as good as one: they take turns, and know each other's
    transactions.

    A process may fork with it: the fork waits, for 10 s at most, until no other thread uses a SQLite file, and parent
    and child go on with connections of their own. A thread must not fork inside its own `read` or `write`: the parent's
    goes on, the child's ends in a StoreError and writes nothing. A SQLite file that was in use at a fork nevertheless
    is refused in the child from then on, since SQLite would take it as locked there.
    """

    def __init__(self, url: URL, engine: Engine) -> None:
        self.url = url
        self._engine = engine
        options: dict[str, Any] = {_READS: True}
        if engine.dialect.name == "postgresql":
            options["isolation_level"] = "AUTOCOMMIT"
        self._reader = engine.execution_options(**options)
        self._place = _place_of(url)
        self._turn = _turns.at(self._place) if engine.dialect.name == "sqlite" else None
        with _lock:
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
            StoreError: it could not be begun, or not committed. Then what was written may or may not be there. With
                SQLite also: this thread is within a transaction that writes to the same file.
        """
        turn = nullcontext() if self._turn is None else self._turn.taken(self.name)
        with turn, self._opened(self._engine) as connection:
            yield connection

    def owns(self, connection: Connection) -> bool:
        """Return whether the connection is one to this database, of whichever store on it.

        The servers of two PostgreSQL URLs are asked; where one does not say who it is, they are two databases.

        Raises:
            StoreError: a server could not be asked.
        """
        if connection.engine.pool is self._engine.pool or _place_of(connection.engine.url) == self._place:
            return True
        if not connection.dialect.name == self.dialect == "postgresql":
            return False
        with self.write() as own:
            identity = _identity(own)
        return identity is not None and identity == _identity(connection)

    @contextmanager
    def _opened(self, engine: Engine) -> Iterator[Connection]:
        if self._place in _inherited:
            raise StoreError(
                f"database {self.name}: it was in use when this process was forked",
                hint="fork outside of transactions, or start a new process",
            )
        process = os.getpid()
        try:
            with ExitStack() as stack:
                stack.enter_context(self._used())
                connection = stack.enter_context(engine.begin())
                try:
                    yield connection
                finally:
                    if os.getpid() != process:
                        # The transaction is the parent's: neither committed, nor rolled back, nor closed here.
                        _parents.append(stack.pop_all())
        except SQLAlchemyError as error:
            raise self._failed(error) from error
        if os.getpid() != process:
            raise StoreError(
                f"database {self.name}: this transaction is of the process that was forked",
                hint="fork outside of transactions",
            )

    def _failed(self, error: SQLAlchemyError) -> StoreError:
        # The driver's words alone: SQLAlchemy's hold the statement's parameters too.
        told = str(getattr(error, "orig", None) or type(error).__name__).strip().split("\n")[0]
        return StoreError(f"database {self.name}: {told}", hint="check that it is there, and not held by another")

    def _used(self) -> AbstractContextManager[None]:
        """Let no thread fork meanwhile, where that matters."""
        return nullcontext() if self._turn is None else _gate.use(self._place)

    def close(self) -> None:
        """Close its connections. A store that is used afterwards opens them again."""
        with self._used():
            self._engine.dispose()

    def _before_fork(self) -> None:
        """Leave the child nothing of SQLite: a connection there would share its view of the locks."""
        if self._turn is not None:
            self._engine.dispose()

    def _in_child(self) -> None:
        """Begin anew after a fork: connections are the parent's, and two processes must not share one."""
        if self._turn is not None:
            self._turn = _turns.at(self._place)
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


def _identity(connection: Connection) -> tuple[Any, ...] | None:
    """Return what tells apart the tables of PostgreSQL that a connection leads to; None: it does not say."""
    try:
        # A role may be forbidden to ask, which must not end the transaction that it is asked in.
        with connection.begin_nested():
            found = tuple(connection.execute(text(_IDENTITY)).one())
    except ProgrammingError:
        return None
    return None if None in found else found


_stores: WeakSet[Store] = WeakSet()
_lock = threading.Lock()
_turns = Turns()
_gate = ForkGate()
_inherited: set[Hashable] = set()
_parents: list[ExitStack] = []


def _before_fork() -> None:
    _gate.close()
    with _lock:
        stores = list(_stores)
    for store in stores:
        store._before_fork()  # noqa: SLF001 - this module's own


def _after_fork() -> None:
    global _lock, _turns
    # Other threads of the parent may have held them.
    _lock, _turns = threading.Lock(), Turns()
    _inherited.update(_gate.open_in_child())
    for store in list(_stores):
        store._in_child()  # noqa: SLF001 - this module's own


os.register_at_fork(before=_before_fork, after_in_parent=_gate.open, after_in_child=_after_fork)
