"""Idempotency keys in a database: for all processes, and after a restart."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, select, update

from pdp.decision import new_id
from pdp.stores.keys import LASTING, Fresh, KeyRecord, KeyState, NotApproved, NotBegunError, started
from pdp.stores.sql.tables import idempotency as table
from pdp.stores.sql.tables import insert_if_absent

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from pdp.proposal import Execution
    from pdp.stores.keys import ApprovalUse, Begun, IdempotencyKey, Known
    from pdp.stores.sql.database import Database

# Made once: making them takes longer than SQLite takes to answer.
_COLUMNS = [column for column in table.c if column.name != "id"]
_BY_ID = select(*_COLUMNS).where(table.c.id == bindparam("id"))
_BY_ID_LOCKED = _BY_ID.with_for_update()
_BY_TOKEN_LOCKED = select(table.c.id, *_COLUMNS).where(table.c.token == bindparam("token")).with_for_update()
_DELETE = delete(table).where(table.c.id == bindparam("key_id"))
_END = update(table).where(table.c.id == bindparam("key_id"))


class _NotApprovedError(Exception):
    """Rolls the transaction back."""


class SqlIdempotency:
    """Keys in a database. Their results are in it in plain JSON: who reads the database reads them."""

    blocking = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, key: IdempotencyKey, arguments_digest: str, now: float) -> Known | None:
        """Return what `begin` would find; see `IdempotencyStore`."""
        with self._database.read() as connection:
            row = connection.execute(_BY_ID, {"id": key.id}).first()
        return None if row is None else _record(row).meaning(arguments_digest, now)

    def begin(
        self,
        key: IdempotencyKey,
        arguments_digest: str,
        *,
        ttl: float | None,
        now: float,
        lasting: float = LASTING,
        approval: ApprovalUse | None = None,
    ) -> Begun:
        """Take the key if it is free; see `IdempotencyStore`."""
        token = new_id()
        new = started(key, arguments_digest, token, ttl=ttl, now=now, lasting=lasting, approval=approval)
        # A replay, which is the most frequent case for a key that there is, takes no lock.
        known = self.look(key, arguments_digest, now)
        if known is not None:
            return known
        try:
            with self._database.write() as connection:
                known = self._taken(connection, key.id, new, now)
                if known is not None:
                    return known
                _use(approval, connection)
        except _NotApprovedError:
            return NotApproved()
        return Fresh(token)

    def _taken(self, connection: Connection, key_id: str, new: KeyRecord, now: float) -> Known | None:
        """Insert the record, or return what is known from the one that is there."""
        values = {"id": key_id, **asdict(new), "state": new.state.value}
        while not insert_if_absent(connection, table, values):
            row = connection.execute(_BY_ID_LOCKED, {"id": key_id}).first()
            # In PostgreSQL, whoever had the key may have freed it since.
            if row is not None:
                known = _record(row).meaning(new.arguments_digest, now)
                if known is not None:
                    return known
                connection.execute(_DELETE, {"key_id": key_id})
        return None

    def finish(self, token: str, execution: Execution, *, now: float, effects: bool = True) -> None:
        """Store the outcome of the run; see `IdempotencyStore`."""
        with self._database.write() as connection:
            row = connection.execute(_BY_TOKEN_LOCKED, {"token": token}).first()
            if row is None or row.state != KeyState.STARTED:
                raise NotBegunError("no run was begun with this token, or it is finished")
            _end(connection, row.id, _record(row).ended(execution, now, effects=effects))

    def settle(self, key: IdempotencyKey, execution: Execution | None, *, now: float) -> None:
        """Store the outcome of an unknown run; see `IdempotencyStore`."""
        with self._database.write() as connection:
            row = connection.execute(_BY_ID_LOCKED, {"id": key.id}).first()
            record = None if row is None else _record(row)
            if record is None or not record.settleable(now):
                raise NotBegunError(f"the idempotency key {key.key!r:.60} has no run whose outcome is unknown")
            _end(connection, key.id, record.ended(execution, now))

    def prune(self, now: float) -> int:
        """Delete what has expired; see `IdempotencyStore`."""
        with self._database.write() as connection:
            expired = (table.c.state == KeyState.FINISHED) & (table.c.expires_at <= now)
            return connection.execute(delete(table).where(expired)).rowcount


def _use(approval: ApprovalUse | None, connection: Connection) -> None:
    if approval is not None and not approval.consume(connection):
        raise _NotApprovedError


def _record(row: Row[Any]) -> KeyRecord:
    fields = {column.name: getattr(row, column.name) for column in _COLUMNS}
    return KeyRecord(**{**fields, "state": KeyState(row.state)})


def _end(connection: Connection, key_id: str, ended: KeyRecord | None) -> None:
    if ended is None:
        connection.execute(_DELETE, {"key_id": key_id})
        return
    values = {"state": ended.state.value, "outcome": ended.outcome, "expires_at": ended.expires_at}
    connection.execute(_END.values(**values), {"key_id": key_id})
