"""Approvals in a database: for all processes, and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, select, update

from pdp.stores.approvals import Approval, ApprovalState
from pdp.stores.errors import StoreError
from pdp.stores.sql.tables import approvals as table
from pdp.stores.sql.tables import insert_if_absent, may_be_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from pdp.stores.sql.database import Database

_RECORDS: Final = TypeAdapter(Approval)
_BY_ID: Final = select(table.c.record).where(table.c.id == bindparam("approval_id"))
_PENDING: Final = select(table.c.record).where(
    table.c.call_digest == bindparam("call_digest"), table.c.state == ApprovalState.PENDING.value
)


class SqlApprovals:
    """Approvals in a database; an `ApprovalStore`. What approvers are shown, arguments included, is in it as JSON."""

    blocking = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, approval: Approval) -> Approval:
        """Add a pending approval, or return the pending one of the same call."""
        # The index `pdp_approvals_one_pending` is what keeps a second one out.
        with self._database.write() as connection:
            while not insert_if_absent(connection, table, _row(approval)):
                text = connection.execute(_PENDING, {"call_digest": approval.call_digest}).scalar()
                if text is not None:
                    return _approval(text)
        return approval

    def get(self, approval_id: str) -> Approval | None:
        """Return the approval of that id, if there is one."""
        if not may_be_id(approval_id):
            return None
        with self._database.read() as connection:
            text = connection.execute(_BY_ID, {"approval_id": approval_id}).scalar()
        return None if text is None else _approval(text)

    def list(self, *, call_digest: str | None = None, state: ApprovalState | None = None) -> Sequence[Approval]:
        """Return the approvals in the order of being added."""
        query = select(table.c.record).order_by(table.c.seq)
        if call_digest is not None:
            query = query.where(table.c.call_digest == call_digest)
        if state is not None:
            query = query.where(table.c.state == state.value)
        with self._database.read() as connection:
            return [_approval(text) for text in connection.execute(query).scalars()]

    def replace(self, old: Approval, new: Approval, *, within: Connection | None = None) -> bool:
        """Put `new` in the place of `old` if what is stored equals `old`, and return whether it did.

        Args:
            old: what should be there.
            new: what to put there.
            within: a transaction to do it in, such as the one that an idempotency key is begun in. One of another
                database is not used; it is done in one of its own then.
        """
        if within is not None and self._database.owns(within):
            return _replaced(within, old, new)
        with self._database.write() as connection:
            return _replaced(connection, old, new)


def _replaced(connection: Connection, old: Approval, new: Approval) -> bool:
    text = connection.execute(_BY_ID.with_for_update(), {"approval_id": old.id}).scalar()
    if text is None or _approval(text) != old:
        return False
    connection.execute(update(table).where(table.c.id == old.id).values(**_row(new)))
    return True


def _row(approval: Approval) -> dict[str, str]:
    return {
        "id": approval.id,
        "call_digest": approval.call_digest,
        "state": approval.state.value,
        "record": _RECORDS.dump_json(approval).decode(),
    }


def _approval(text: str) -> Approval:
    try:
        return _RECORDS.validate_json(text)
    except ValidationError as error:
        raise StoreError(
            "an approval in the database cannot be read", hint="another program changed it, or a newer release wrote it"
        ) from error
