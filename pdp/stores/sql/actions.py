"""Actions in a database: for all processes, and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, select, update

from pdp.stores.actions import Action, changed_since, key_id, same_action
from pdp.stores.errors import StoreError
from pdp.stores.sql.tables import actions as table
from pdp.stores.sql.tables import insert_if_absent, may_be_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.stores.actions import ActionState
    from pdp.stores.sql.database import Database

_RECORDS: Final = TypeAdapter(Action)
_BY_ID: Final = select(table.c.record).where(table.c.id == bindparam("action_id"))
_BY_KEY: Final = select(table.c.record).where(table.c.key_id == bindparam("key_id"))


class SqlActions:
    """Actions in a database."""

    blocking = True

    def __init__(self, database: Database) -> None:
        self._database = database

    def stage(self, action: Action, owner: str) -> Action:
        """Store a new action, or return the stored one; see `ActionStore`."""
        key = key_id(owner, action)
        with self._database.write() as connection:
            if insert_if_absent(connection, table, {"key_id": key, **_row(action)}):
                return action
            # Actions are never deleted, so the one in the way is there.
            return same_action(_action(connection.execute(_BY_KEY, {"key_id": key}).scalar_one()), action)

    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""
        if not may_be_id(action_id):
            return None
        with self._database.read() as connection:
            text = connection.execute(_BY_ID, {"action_id": action_id}).scalar()
        return None if text is None else _action(text)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions in the order of being staged."""
        query = select(table.c.record).order_by(table.c.seq)
        if state is not None:
            query = query.where(table.c.state == state.value)
        with self._database.read() as connection:
            return [_action(text) for text in connection.execute(query).scalars()]

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Move an action to another state; see `ActionStore`."""
        new = action.moved(state, approval_id)
        with self._database.write() as connection:
            text = connection.execute(_BY_ID.with_for_update(), {"action_id": action.id}).scalar()
            stored = None if text is None else _action(text)
            if stored != action:
                raise changed_since(action, stored)
            connection.execute(update(table).where(table.c.id == action.id).values(**_row(new)))
        return new


def _row(action: Action) -> dict[str, str]:
    return {"id": action.id, "state": action.state.value, "record": _RECORDS.dump_json(action).decode()}


def _action(text: str) -> Action:
    try:
        return _RECORDS.validate_json(text)
    except ValidationError as error:
        raise StoreError(
            "an action in the database cannot be read", hint="another program changed it, or a newer release wrote it"
        ) from error
