"""Actions, approvals, grants and remote calls in a database. A row has columns for queries, and the record as JSON."""

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
from pdp.stores.grants import GrantState, LastingGrant
from pdp.stores.remote_calls import OVERDUE, RemoteCall
from pdp.stores.sql.database import Database, DatabaseStore
from pdp.stores.sql.tables import actions, approvals, grants, insert_if_absent, remote_calls

Record = TypeVar("Record", Action, Approval, LastingGrant, RemoteCall)


class _SqlRecords(DatabaseStore, Generic[Record]):
    """Base class of stores with one table of records. `_adapter` converts the records to and from JSON."""

    _table: ClassVar[TableClause]
    _adapter: ClassVar[TypeAdapter[Any]]

    def get(self, record_id: str) -> Record | None:
        if not record_id.isascii() or "\0" in record_id:
            return None  # A generated id has no such character, and databases raise errors for it.
        with self._database.read() as connection:
            return self._first(connection, {"id": record_id})

    def replace(self, old: Record, new: Record, *, within: Transaction | None = None) -> bool:
        with self._database.joined(within) as connection:
            if self._first(connection, {"id": old.id}, lock=True) != old:
                return False
            connection.execute(update(self._table).filter_by(id=old.id).values(**self._row(new)))
        return True

    def _add(self, record: Record, only: dict[str, str], **columns: str) -> Record:
        """Store a record. If a stored record has the same values in the unique columns `only`, return that record."""
        with self._database.write() as connection:
            while not insert_if_absent(connection, self._table, {**self._row(record), **columns}):
                stored = self._first(connection, only)
                if stored is not None:
                    return stored
        return record

    def _all(
        self, within: Sequence[str] = (), after: str | None = None, limit: int | None = None, **columns: str | None
    ) -> Sequence[Record]:
        """Return a page of the records with these column values, whose JSON contains every text of `within`."""
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
    """Actions in a database, of calls with effects.

    Args:
        database: an open database.

    Examples:
        >>> from pdp import Database
        >>> with Database.open("sqlite:///agent.db", upgrade=True) as database:
        ...     SqlActions(database).list()
        []
    """

    _table = actions
    _adapter = TypeAdapter(Action)

    def add(self, action: Action, key_id: str) -> Action:
        return self._add(action, {"key_id": key_id}, key_id=key_id)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        return self._all(state=state)


class SqlApprovals(_SqlRecords[Approval]):
    """Approvals in a database, for `Approvals(store=...)`. Requests with their arguments are stored as plain JSON.

    Args:
        database: an open database.

    Examples:
        >>> from pdp import Approvals, Database
        >>> with Database.open("sqlite:///agent.db", upgrade=True) as database:
        ...     Approvals(SqlApprovals(database)).list()
        []
    """

    _table = approvals
    _adapter = TypeAdapter(Approval)

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lasting = SqlGrants(database)

    def add(self, approval: Approval) -> Approval:
        call = approval.call_digest
        # The index `pdp_approvals_one_pending` rejects a second pending approval.
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
        """Return the approvals that match all arguments, oldest first.

        Args:
            call_digest: only approvals of this call.
            state: only approvals in this state.
            after: only approvals that were added after the approval with this id.
            limit: the largest number of approvals.
            texts: only approvals with this `subject`, `tool` or `run_id`.
        """
        wanted = {name: text for name, text in texts.items() if text is not None}
        # The database selects candidates and partly ignores case. The exact comparison follows below.
        within = [f'"{name}":{to_json(text).decode()}' for name, text in wanted.items()]
        matching: list[Approval] = []
        while True:
            page = self._all(within, after, limit, call_digest=call_digest, state=state)
            matching += [each for each in page if all(getattr(each, name) == text for name, text in wanted.items())]
            if limit is None or len(page) < limit or len(matching) >= limit:
                return matching[:limit]
            after = page[-1].id


class SqlGrants(_SqlRecords[LastingGrant]):
    """Lasting grants in a database. `SqlApprovals` has them as `lasting`."""

    _table = grants
    _adapter = TypeAdapter(LastingGrant)

    def add(self, grant: LastingGrant) -> None:
        with self._database.write() as connection:
            insert_if_absent(connection, self._table, self._row(grant))

    def list(
        self,
        *,
        scope: str | None = None,
        state: GrantState | None = None,
        run_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[LastingGrant]:
        # The database partly ignores case, so the exact comparison follows.
        within = () if run_id is None else (f'"run_id":{to_json(run_id).decode()}',)
        page = self._all(within, after, limit, scope=scope, state=state)
        return [each for each in page if run_id in (None, each.run_id)]

    def _row(self, record: LastingGrant) -> dict[str, Any]:
        return super()._row(record) | {"scope": record.scope}


class SqlRemoteCalls(_SqlRecords[RemoteCall]):
    """Records of calls of remote enforcement points in a database. Arguments and results are stored in clear."""

    _table = remote_calls
    _adapter = TypeAdapter(RemoteCall)

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a transaction in which `add` and other stores of the same database can take part."""
        return self._database.write()

    def add(self, call: RemoteCall, *, within: Transaction | None = None) -> bool:
        """Store a new call. Return False if the call's id is already used."""
        with self._database.joined(within) as connection:
            return insert_if_absent(connection, self._table, self._row(call))

    def overdue(self, now: float) -> Sequence[RemoteCall]:
        """Return up to 100 calls without a result in time, unless a process is working on the call."""
        columns = self._table.c
        query = select(columns.record).where(columns.state.in_(OVERDUE), columns.running_until <= now)
        query = query.where(columns.held_until <= now).order_by(columns.running_until).limit(100)
        with self._database.read() as connection:
            return [self._read(text) for text in connection.execute(query).scalars()]

    def prune(self, before: float) -> int:
        """Delete ended calls whose `running_until` is earlier than `before`. Return how many were deleted."""
        columns = self._table.c
        ended = columns.state.not_in(OVERDUE) & (columns.running_until < before)
        with self._database.write() as connection:
            return connection.execute(delete(self._table).where(ended)).rowcount

    def _row(self, record: RemoteCall) -> dict[str, Any]:
        return super()._row(record) | {"running_until": record.running_until, "held_until": record.held_until}
