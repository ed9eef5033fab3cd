"""The stores that a URL names: of keys, actions, approvals, runs, budgets and tokens, in one place."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdp.ledger.ledger import LedgerStore
    from pdp.stores.actions import ActionStore
    from pdp.stores.approvals import ApprovalStore
    from pdp.stores.budgets import BudgetStore
    from pdp.stores.keys import IdempotencyStore
    from pdp.stores.sql.audit import SqlAudit
    from pdp.stores.sql.records import SqlRemoteCalls
    from pdp.stores.sql.tokens import SqlTokens
    from pdp.stores.sql.webhooks import SqlWebhooks


class OpenStores(NamedTuple):
    """The stores of one place, until `close`. `name` is the URL for people, its password hidden."""

    name: str
    keys: IdempotencyStore
    actions: ActionStore
    approvals: ApprovalStore
    ledger: LedgerStore
    budgets: BudgetStore
    tokens: SqlTokens
    webhooks: SqlWebhooks
    remote_calls: SqlRemoteCalls
    open_audit: Callable[[bytes | None], SqlAudit]
    check: Callable[[], str]
    close: Callable[[], object]


def open_stores(url: str, *, upgrade: bool = False) -> OpenStores:
    """Open the stores of a database; arguments and errors as of `Database.open`.

    MissingExtraError: what a database needs is not installed.
    """
    from pdp.stores.sql.audit import SqlAudit  # noqa: PLC0415 - an optional extra
    from pdp.stores.sql.budgets import SqlBudgets  # noqa: PLC0415 - an optional extra
    from pdp.stores.sql.database import Database  # noqa: PLC0415 - an optional extra
    from pdp.stores.sql.keys import SqlIdempotency  # noqa: PLC0415
    from pdp.stores.sql.ledger import SqlLedger  # noqa: PLC0415
    from pdp.stores.sql.records import SqlActions, SqlApprovals, SqlRemoteCalls  # noqa: PLC0415
    from pdp.stores.sql.tokens import SqlTokens  # noqa: PLC0415
    from pdp.stores.sql.webhooks import SqlWebhooks  # noqa: PLC0415

    database = Database.open(url, upgrade=upgrade)
    return OpenStores(
        database.name,
        SqlIdempotency(database),
        SqlActions(database),
        SqlApprovals(database),
        SqlLedger(database),
        SqlBudgets(database),
        SqlTokens(database),
        SqlWebhooks(database),
        SqlRemoteCalls(database),
        partial(SqlAudit, database),
        database.check,
        database.close,
    )
