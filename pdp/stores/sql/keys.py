"""Idempotency keys in a database, shared by all processes and kept after a restart."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Result, bindparam, delete, select, update

from pdp.stores.approvals import Transaction
from pdp.stores.keys import IdempotencyStore, KeyRecord, KeyRows, KeyState
from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.tables import idempotency as table
from pdp.stores.sql.tables import insert_if_absent

# The statements are built only once, because building one takes longer than SQLite takes to run it.
_BY_ID = select(table).where(table.c.id == bindparam("id"))
_BY_ID_LOCKED = _BY_ID.with_for_update()
_DELETE = delete(table).where(table.c.id == bindparam("key_id"))
_END = update(table).where(table.c.id == bindparam("key_id"))


class SqlIdempotency(DatabaseStore, IdempotencyStore):
    """Idempotency keys in a database. The results of calls are stored with their keys, as plain JSON.

    Args:
        database: an open database.

    Examples:
        >>> from pdp import Database
        >>> with Database.open("sqlite:///agent.db", upgrade=True) as database:
        ...     SqlIdempotency(database).unknown(now=0)
        []
    """

    def read(self, key_id: str) -> KeyRecord | None:
        with self._database.read() as connection:
            return _record(connection.execute(_BY_ID, {"id": key_id}))

    def unknown(self, now: float) -> Sequence[KeyRecord]:
        overdue = (table.c.state == KeyState.STARTED) & (table.c.running_until <= now)
        query = select(table).where((table.c.state == KeyState.UNKNOWN) | overdue).order_by(table.c.started_at)
        with self._database.read() as connection:
            return [_of_row(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def transaction(self) -> Iterator[KeyRows]:
        with self._database.write() as connection:
            yield _SqlKeyRows(connection)

    def prune(self, now: float) -> int:
        expired = (table.c.state == KeyState.FINISHED) & (table.c.expires_at <= now)
        with self._database.write() as connection:
            return connection.execute(delete(table).where(expired)).rowcount


class _SqlKeyRows:
    def __init__(self, connection: Connection) -> None:
        self.transaction: Transaction | None = connection
        self._connection = connection

    def get(self, key_id: str) -> KeyRecord | None:
        return _record(self._connection.execute(_BY_ID_LOCKED, {"id": key_id}))

    def add(self, record: KeyRecord) -> bool:
        return insert_if_absent(self._connection, table, asdict(record))

    def put(self, key_id: str, record: KeyRecord | None) -> None:
        if record is None:
            self._connection.execute(_DELETE, {"key_id": key_id})
            return
        values = {"state": record.state, "outcome": record.outcome, "expires_at": record.expires_at}
        self._connection.execute(_END.values(**values), {"key_id": key_id})


def _record(rows: Result[Any]) -> KeyRecord | None:
    row = rows.mappings().first()
    return None if row is None else _of_row(row)


def _of_row(row: Mapping[Any, Any]) -> KeyRecord:
    return KeyRecord(**{**row, "state": KeyState(row["state"])})
