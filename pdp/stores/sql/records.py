"""Actions, approvals, remote calls in a database: a row for each, columns for what queries ask, the whole as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import Connection, TableClause, delete, select, update

from pdp.errors import StoreError
from pdp.stores.actions import Action, ActionState, ActionStore
from pdp.stores.approvals import Approval, ApprovalState, Transaction
from pdp.stores.remote_calls import OVERDUE, RemoteCall
from pdp.stores.sql.database import DatabaseStore
from pdp.stores.sql.tables import actions, approvals, insert_if_absent, remote_calls

Record = TypeVar("Record", Action, Approval, RemoteCall)


class _SqlRecords(DatabaseStore, Generic[Record]):
    """Records of one kind in their table; `_adapter` reads and writes their JSON."""

    _table: ClassVar[TableClause]
    _adapter: ClassVar[TypeAdapter[Any]]

    def get(self, record_id: str) -> Record | None:
        if not record_id.isascii() or "\0" in record_id:
            return None  # not an id of ours, and no database can be asked for it
        with self._database.read() as connection:
            return self._first(connection, {"id": record_id})

    def replace(self, old: Record, new: Record, *, within: Transaction | None = None) -> bool:
        """Put `new` in the place of `old` if what is stored equals `old`, and return whether it did.

        `within`: a transaction to do it in, such as the one that an idempotency key is begun in. One of another
        database is not used: then it is done in one of its own.
        """
        with self._database.joined(within) as connection:
            if self._first(connection, {"id": old.id}, lock=True) != old:
                return False
            connection.execute(update(self._table).filter_by(id=old.id).values(**self._row(new)))
        return True

    def _add(self, record: Record, only: dict[str, str], **columns: str) -> Record:
        """Store a record, or return the stored one that has the same columns `only`, by a unique index."""
        with self._database.write() as connection:
            while not insert_if_absent(connection, self._table, {**self._row(record), **columns}):
                stored = self._first(connection, only)
                if stored is not None:
                    return stored
        return record

    def _all(
        self, within: Sequence[str] = (), after: str | None = None, limit: int | None = None, **columns: str | None
    ) -> Sequence[Record]:
        """Return the records with these columns and the texts `within` in their JSON, page by page."""
        query = select(self._table.c.record).order_by(self._table.c.seq).limit(limit)
        if after is not None:
            older = select(self._table.c.seq).filter_by(id=after).correlate(None).scalar_subquery()
            query = query.where(self._table.c.seq > older)
        for text in within:
            query = query.where(self._table.c.record.contains(text, autoescape=True))
        query = query.filter_by(**{name: value for name, value in columns.items() if value is not None})
        with self._database.read() as connection:
            return [self._read(text) for text in connection.execute(query).scalars()]

    def _first(self, connection: Connection, columns: Mapping[str, str], *, lock: bool = False) -> Record | None:
        query = select(self._table.c.record).filter_by(**columns)
        text = connection.execute(query.with_for_update() if lock else query).scalar()
        return None if text is None else self._read(text)

    def _read(self, text: str) -> Record:
        try:
            record: Record = self._adapter.validate_json(text)
        except ValidationError as error:
            raise StoreError(
                f"a record of {self._table.name} cannot be read",
                hint="another program changed it, or a newer release wrote it",
            ) from error
        return record

    def _row(self, record: Record) -> dict[str, Any]:
        return {"id": record.id, "state": record.state, "record": self._adapter.dump_json(record).decode()}


class SqlActions(_SqlRecords[Action], ActionStore):
    """Actions in a database."""

    _table = actions
    _adapter = TypeAdapter(Action)

    def add(self, action: Action, key_id: str) -> Action:
        return self._add(action, {"key_id": key_id}, key_id=key_id)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        return self._all(state=state)


class SqlApprovals(_SqlRecords[Approval]):
    """Approvals in a database; an `ApprovalStore`. What approvers are shown, arguments included, is in it as JSON."""

    _table = approvals
    _adapter = TypeAdapter(Approval)

    def add(self, approval: Approval) -> Approval:
        call = approval.call_digest
        # The index `pdp_approvals_one_pending` is what keeps a second one out.
        return self._add(approval, {"call_digest": call, "state": ApprovalState.PENDING}, call_digest=call)

    def list(
        self,
        *,
        call_digest: str | None = None,
        state: ApprovalState | None = None,
        after: str | None = None,
        limit: int | None = None,
        **texts: str | None,
    ) -> Sequence[Approval]:
        """Return the approvals in the order of being added; of one call or state where that is stated.

        `texts`: likewise of one `subject`, `tool` or `run_id`. `after`: those that were added after the one of that id;
        `limit`: at most so many.
        """
        wanted = {name: text for name, text in texts.items() if text is not None}
        # The database leaves out what cannot have these texts; case counts here, and not there.
        within = [f'"{name}":{to_json(text).decode()}' for name, text in wanted.items()]
        found: list[Approval] = []
        while True:
            page = self._all(within, after, limit, call_digest=call_digest, state=state)
            found += [each for each in page if all(getattr(each, name) == text for name, text in wanted.items())]
            if limit is None or len(page) < limit or len(found) >= limit:
                return found[:limit]
            after = page[-1].id


class SqlRemoteCalls(_SqlRecords[RemoteCall]):
    """Calls of remote enforcement points in a database. Arguments and results are in it."""

    _table = remote_calls
    _adapter = TypeAdapter(RemoteCall)

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a transaction for `add`, and for stores of the same database."""
        return self._database.write()

    def add(self, call: RemoteCall, *, within: Transaction | None = None) -> bool:
        """Store a new call unless there is one of its id, and return whether it was stored."""
        with self._database.joined(within) as connection:
            return insert_if_absent(connection, self._table, self._row(call))

    def overdue(self, now: float) -> Sequence[RemoteCall]:
        """Return those that nobody has finished in time and nobody works on, the first 100."""
        columns = self._table.c
        query = select(columns.record).where(columns.state.in_(OVERDUE), columns.running_until <= now)
        query = query.where(columns.held_until <= now).order_by(columns.running_until).limit(100)
        with self._database.read() as connection:
            return [self._read(text) for text in connection.execute(query).scalars()]

    def prune(self, before: float) -> int:
        """Delete those whose `running_until` is before that time and that are over, and return how many."""
        columns = self._table.c
        over = columns.state.not_in(OVERDUE) & (columns.running_until < before)
        with self._database.write() as connection:
            return connection.execute(delete(self._table).where(over)).rowcount

    def _row(self, record: RemoteCall) -> dict[str, Any]:
        return super()._row(record) | {"running_until": record.running_until, "held_until": record.held_until}
