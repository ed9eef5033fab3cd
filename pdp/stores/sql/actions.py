"""Actions in a database: for all processes, and after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, select, update

from pdp.stores.action import Action, changed_since, key_id, moved, same_action, staged
from pdp.stores.errors import StoreError
from pdp.stores.sql.tables import actions as table
from pdp.stores.sql.tables import insert_if_absent, may_be_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.stores.action import ActionState
    from pdp.stores.sql.database import Store

_RECORDS: Final = TypeAdapter(Action)
_BY_ID: Final = select(table.c.record).where(table.c.id == bindparam("action_id"))
_BY_KEY: Final = select(table.c.record).where(table.c.key_id == bindparam("key_id"))


class SqlActions:
    """Actions in a database."""

    blocking = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def stage(
        self,
        *,
        owner: str,
        kind: str,
        target: str,
        payload_digest: str,
        decision_id: str,
        idempotency_key: str | None = None,
        now: float,
    ) -> Action:
        """Stage an action, or return the one that is there; see `ActionStore`."""
        new = staged(
            kind=kind,
            target=target,
            payload_digest=payload_digest,
            decision_id=decision_id,
            idempotency_key=idempotency_key,
            now=now,
        )
        key = key_id(owner, new)
        with self._store.write() as connection:
            if insert_if_absent(connection, table, {"key_id": key, **_row(new)}):
                return new
            # Actions are never deleted, so whatever was in the way is there.
            return same_action(_action(connection.execute(_BY_KEY, {"key_id": key}).scalar_one()), new)

    def get(self, action_id: str) -> Action | None:
        """Return the action of that id, if there is one."""
        if not may_be_id(action_id):
            return None
        with self._store.read() as connection:
            text = connection.execute(_BY_ID, {"action_id": action_id}).scalar()
        return None if text is None else _action(text)

    def list(self, *, state: ActionState | None = None) -> Sequence[Action]:
        """Return the actions in the order of being staged."""
        asked = select(table.c.record).order_by(table.c.seq)
        if state is not None:
            asked = asked.where(table.c.state == state.value)
        with self._store.read() as connection:
            return [_action(text) for text in connection.execute(asked).scalars()]

    def move(self, action: Action, state: ActionState, *, approval_id: str | None = None) -> Action:
        """Let `action` be in another state; see `ActionStore`."""
        new = moved(action, state, approval_id)
        with self._store.write() as connection:
            text = connection.execute(_BY_ID.with_for_update(), {"action_id": action.id}).scalar()
            there = None if text is None else _action(text)
            if there != action:
                raise changed_since(action, there)
            connection.execute(update(table).where(table.c.id == action.id).values(**_row(new)))
        return new


def _row(action: Action) -> dict[str, str]:
    return {"id": action.id, "state": action.state.value, "record": _RECORDS.dump_json(action).decode()}


def _action(text: str) -> Action:
    try:
        return _RECORDS.validate_json(text)
    except ValidationError as error:
        raise StoreError(
            "an action that is kept cannot be read", hint="it was changed by another program, or by a newer release"
        ) from error
