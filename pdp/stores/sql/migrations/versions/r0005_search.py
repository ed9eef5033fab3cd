"""Add columns that the console searches to the audit stream and the approvals, and fill them for existing rows."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op

from pdp.stores.sql.tables import searchable

revision = "0005"
down_revision = "0004"

_BATCH = 1000
_Columns = Mapping[str, str | None]


def upgrade() -> None:
    """Add, fill and index the columns."""
    _add("pdp_audit", "line", _of_event, "time", "verdict", "tool", "codes", "subject", "run_id")
    _index("pdp_audit", "approval_id", "seq", where="approval_id IS NOT NULL")
    _add("pdp_approvals", "record", _of_approval, "tool", "subject", "run_id", "opened_at", "expires_at")
    _index("pdp_approvals", "expires_at", "seq", where="state = 'pending'")
    _index("pdp_approvals", "tool", "seq")
    _index("pdp_approvals", "subject", "seq")
    _index("pdp_approvals", "run_id", "seq", where="run_id IS NOT NULL")


def _index(table: str, *columns: str, where: str | None = None) -> None:
    only = None if where is None else sa.text(where)
    op.create_index(f"ix_{table}_{columns[0]}", table, [*columns], sqlite_where=only, postgresql_where=only)


def _add(table: str, json: str, columns_of: Callable[[Any], _Columns], *names: str) -> None:
    for name in names:
        op.add_column(table, sa.Column(name, sa.Text))
    connection, after = op.get_bind(), -1
    assignments = ", ".join(f"{name} = :{name}" for name in names)
    update = sa.text(f"UPDATE {table} SET {assignments} WHERE seq = :seq")  # noqa: S608 - constant names
    select = sa.text(f"SELECT seq, {json} FROM {table} WHERE seq > :after ORDER BY seq LIMIT :limit")  # noqa: S608
    while rows := connection.execute(select, {"after": after, "limit": _BATCH}).all():
        connection.execute(
            update, [{**dict.fromkeys(names), "seq": seq, **_read(text, columns_of)} for seq, text in rows]
        )
        after = rows[-1][0]


def _read(text: str, columns_of: Callable[[Any], _Columns]) -> _Columns:
    try:
        columns = columns_of(orjson.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # The row was damaged. `pdp audit verify` reports it; the upgrade goes on.
    # PostgreSQL rejects NUL.
    return {name: value and value.replace("\0", "\ufffd") for name, value in columns.items()}


def _of_event(event: dict[str, Any]) -> _Columns:
    is_decision = event["type"].endswith(".dispatch")
    verdict = event.get("verdict") or (None if event.get("rejection") is None else "REJECTED")
    return {
        "time": event["time"],
        "verdict": verdict if is_decision else None,
        "codes": " ".join(event.get("codes", ())) if is_decision else None,
        **_texts(tool=event.get("tool_name"), subject=event.get("subject"), run_id=event.get("run_id")),
    }


def _of_approval(record: dict[str, Any]) -> _Columns:
    texts = _texts(**{name: record[name] for name in ("tool", "subject", "run_id")})
    return {"opened_at": record["opened_at"], "expires_at": record["expires_at"], **texts}


def _texts(**texts: str | None) -> _Columns:
    return {name: None if text is None else searchable(text) for name, text in texts.items()}
