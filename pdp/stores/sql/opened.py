"""Opens all stores of one database, and counts records for metrics. `pdp.stores.url.OpenStores` has the attributes."""

from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, func, literal_column, or_, select

from pdp.clock import to_seconds
from pdp.stores.approvals import ApprovalState
from pdp.stores.grants import GrantState
from pdp.stores.keys import KeyState
from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.ledger import SqlLedger
from pdp.stores.sql.records import SqlActions, SqlApprovals, SqlRemoteCalls
from pdp.stores.sql.requests import SqlRequests
from pdp.stores.sql.tables import approvals, audit, grants, idempotency, reservations, webhooks
from pdp.stores.sql.tokens import SqlTokens, SqlWebhooks

_MOST: Final = 10_000  # Counts end at this number, so that a scrape stays cheap.
_AGES: Final = {"5m": 300, "1h": 3600, "1d": 86_400}
_WAITING: Final = approvals.c.state == literal_column(f"'{ApprovalState.PENDING}'")  # A literal, for a partial index.


def database_stores(url: str, *, upgrade: bool) -> dict[str, Any]:
    """Open a database, as `Database.open` does, and return the stores in it by name."""
    database = Database.open(url, upgrade=upgrade)
    return {
        "name": database.name,
        "keys": SqlIdempotency(database.of("keys")),
        "actions": SqlActions(database.of("actions")),
        "approvals": SqlApprovals(database.of("approvals")),
        "ledger": SqlLedger(database.of("ledger")),
        "budgets": SqlBudgets(database.of("budgets")),
        "tokens": SqlTokens(database.of("tokens")),
        "webhooks": SqlWebhooks(database.of("webhooks")),
        "remote_calls": SqlRemoteCalls(database.of("remote_calls")),
        "requests": SqlRequests(database.of("requests")),
        "open_audit": partial(SqlAudit, database.of("audit")),
        "check": database.of("check").check,
        "counts": partial(_counts, database.of("counts")),
        "keys_unknown": partial(_keys_unknown, database.of("counts")),
        "close": database.close,
    }


def _counts(database: Database, now: float) -> dict[str, dict[str, float]]:
    """Return the numbers of the metrics of a store by name and by the value of a label, if the metric has one."""
    with database.read() as connection:
        waiting = select(approvals.c.opened_at).where(_WAITING, approvals.c.expires_at > to_seconds(now)).limit(_MOST)
        opened = waiting.subquery().c.opened_at
        younger = [func.count().filter(opened >= to_seconds(now - seconds)) for seconds in _AGES.values()]
        first, *sums = connection.execute(select(func.min(opened), *younger, func.count())).one()
        oldest = 0.0 if first is None else max(0.0, now - datetime.fromisoformat(first).timestamp())
        sent = connection.execute(select(webhooks.c.id, webhooks.c.seq)).all()
        is_later = {each: (audit.c.approval_id.is_not(None), audit.c.seq > seq) for each, seq in sent}
        return {
            "approvals_pending": {age: sums[at] - sum(sums[:at][-1:]) for at, age in enumerate([*_AGES, "older"])},
            "approvals_oldest_seconds": {"": oldest},
            "grants_active": {"": _count(connection, grants.c.state == GrantState.ACTIVE)},
            "budgets_unknown": {"": _count(connection, reservations.c.running_until <= now)},
            "webhook_queue": {each: _count(connection, *later) for each, later in is_later.items()},
        }


def _keys_unknown(database: Database, now: float) -> int:
    """Return how many keys have an unknown outcome, at most 10,000. No index helps: the table is read as a whole."""
    columns = idempotency.c
    overdue = (columns.state == KeyState.STARTED) & (columns.running_until <= now)
    with database.read() as connection:
        return _count(connection, or_(columns.state == KeyState.UNKNOWN, overdue))


def _count(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    rows = select(literal_column("1").label("row")).where(*conditions).limit(_MOST).subquery()
    return connection.execute(select(func.count()).select_from(rows)).scalar_one()
