"""The stores that a URL names: of keys, actions, approvals, runs, budgets and tokens, in one place."""

from functools import partial


class OpenStores:
    """The stores of one database, until `close`. `name` is the URL for people, its password hidden.

    Arguments and errors as of `Database.open`. MissingExtraError: what a database needs is not installed.
    """

    def __init__(self, url: str, *, upgrade: bool = False) -> None:
        from pdp.stores.sql.audit import SqlAudit  # noqa: PLC0415 - an optional extra
        from pdp.stores.sql.budgets import SqlBudgets  # noqa: PLC0415
        from pdp.stores.sql.database import Database  # noqa: PLC0415
        from pdp.stores.sql.keys import SqlIdempotency  # noqa: PLC0415
        from pdp.stores.sql.ledger import SqlLedger  # noqa: PLC0415
        from pdp.stores.sql.records import SqlActions, SqlApprovals, SqlRemoteCalls  # noqa: PLC0415
        from pdp.stores.sql.tokens import SqlTokens  # noqa: PLC0415
        from pdp.stores.sql.webhooks import SqlWebhooks  # noqa: PLC0415

        database = Database.open(url, upgrade=upgrade)
        self.name = database.name
        self.keys = SqlIdempotency(database)
        self.actions = SqlActions(database)
        self.approvals = SqlApprovals(database)
        self.ledger = SqlLedger(database)
        self.budgets = SqlBudgets(database)
        self.tokens = SqlTokens(database)
        self.webhooks = SqlWebhooks(database)
        self.remote_calls = SqlRemoteCalls(database)
        self.open_audit = partial(SqlAudit, database)
        self.check, self.close = database.check, database.close
