"""Actions, approvals, grants and remote calls in a database. A row has columns for queries, and the record as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Connection, TableClause, delete, literal_column, select, tuple_, update

from pdp.errors import StoreError
from pdp.stores.actions import Action, ActionState, ActionStore
from pdp.stores.approvals import Approval, ApprovalState, Transaction
from pdp.stores.grants import GrantState, LastingGrant
from pdp.stores.remote_calls import OVERDUE, RemoteCall
from pdp.stores.sql.database import Database, DatabaseStore
from pdp.stores.sql.tables import actions, approvals, grants, insert_if_absent, remote_calls, searchable

Record = TypeVar("Record", Action, Approval, LastingGrant, RemoteCall)


_PENDING: Final[ColumnElement[str]] = literal_column(f"'{ApprovalState.PENDING}'")


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
        self, within: str = "", after: str | None = None, limit: int | None = None, **columns: str | None
    ) -> Sequence[Record]:
        """Return a page of the records with these column values, whose JSON contains the text `within`."""
        query = select(self._table.c.record).order_by(self._table.c.seq).limit(limit)
        if after is not None:
            older = select(self._table.c.seq).filter_by(id=after).correlate(None).scalar_subquery()
            query = query.where(self._table.c.seq > older)
        if within:
            query = query.where(self._table.c.record.contains(within, autoescape=True))
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
        self.lasting = SqlGrants(database.of("grants"))

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
        return self._all("", after, limit, call_digest=call_digest, state=state, **_columns(texts))

    def page(
        self,
        limit: int,
        *,
        waiting_at: str | None = None,
        after: str | None = None,
        state: ApprovalState | None = None,
        opened_from: str | None = None,
        opened_before: str | None = None,
        **texts: str | None,
    ) -> Sequence[Approval]:
        """Return a page of the waiting approvals, those that expire first at the start, or of the closed ones.

        Args:
            limit: the largest number of approvals.
            waiting_at: only approvals that are pending at this time. Without it, return all that are not pending,
                the newest at the start.
            after: the id of the last approval of the previous page.
            state: only approvals in this state.
            opened_from: only approvals that were opened at this time or later.
            opened_before: only approvals that were opened before this time.
            texts: only approvals with this `subject`, `tool` or `run_id`.
        """
        columns = self._table.c
        query = select(columns.record).filter_by(**_columns(texts) | ({} if state is None else {"state": state}))
        query = query.limit(limit)
        query = query if opened_from is None else query.where(columns.opened_at >= opened_from)
        query = query if opened_before is None else query.where(columns.opened_at < opened_before)
        with self._database.read() as connection:
            last = None if after is None else connection.execute(
                select(columns.expires_at, columns.seq).filter_by(id=after)
            ).one_or_none()  # fmt: skip
            if after is not None and last is None:
                return []
            if waiting_at is None:
                query = query.where(columns.state != _PENDING).order_by(columns.seq.desc())
                query = query if last is None else query.where(columns.seq < last[1])
            else:
                # A literal lets SQLite use the partial index.
                query = query.where(columns.state == _PENDING, columns.expires_at > waiting_at)
                query = query.order_by(columns.expires_at, columns.seq)
                query = query if last is None else query.where(tuple_(columns.expires_at, columns.seq) > tuple_(*last))
            return [self._read(text) for text in connection.execute(query).scalars()]

    def _row(self, record: Approval) -> dict[str, Any]:
        texts = {name: getattr(record, name) for name in ("tool", "subject", "run_id")}
        return (
            super()._row(record) | dict.fromkeys(texts) | _columns(texts)
            | {"opened_at": record.opened_at, "expires_at": record.expires_at}
        )  # fmt: skip


def _columns(texts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: searchable(text) for name, text in texts.items() if text is not None}


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
        within = "" if run_id is None else f'"run_id":{to_json(run_id).decode()}'
        page = self._all(within, after, limit, scope=scope, state=state)
        return [each for each in page if run_id in (None, each.run_id)]

    def page(self, limit: int, *, active: bool, before: str | None = None) -> Sequence[LastingGrant]:
        """Return a page of the active or of the ended grants, the newest first, that were added before a grant.

        Grants that have expired count as active until a sweep ends them.
        """
        columns = self._table.c
        state = columns.state == GrantState.ACTIVE if active else columns.state != GrantState.ACTIVE
        query = select(columns.record).where(state).order_by(columns.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(
                columns.seq < select(columns.seq).filter_by(id=before).correlate(None).scalar_subquery()
            )
        with self._database.read() as connection:
            return [self._read(text) for text in connection.execute(query).scalars()]

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
