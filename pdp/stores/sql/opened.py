"""Opens all stores of one database. The result has the attributes of `pdp.stores.url.OpenStores`."""

from functools import partial
from typing import Any

from pdp.stores.sql.audit import SqlAudit
from pdp.stores.sql.budgets import SqlBudgets
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.ledger import SqlLedger
from pdp.stores.sql.records import SqlActions, SqlApprovals, SqlRemoteCalls
from pdp.stores.sql.requests import SqlRequests
from pdp.stores.sql.tokens import SqlTokens, SqlWebhooks


def database_stores(url: str, *, upgrade: bool) -> dict[str, Any]:
    """Open a database, as `Database.open` does, and return the stores in it by name."""
    database = Database.open(url, upgrade=upgrade)
    return {
        "name": database.name,
        "keys": SqlIdempotency(database),
        "actions": SqlActions(database),
        "approvals": SqlApprovals(database),
        "ledger": SqlLedger(database),
        "budgets": SqlBudgets(database),
        "tokens": SqlTokens(database),
        "webhooks": SqlWebhooks(database),
        "remote_calls": SqlRemoteCalls(database),
        "requests": SqlRequests(database),
        "open_audit": partial(SqlAudit, database),
        "check": database.check,
        "close": database.close,
    }
