"""Stores in a database: for all processes, and after a restart.

* database: `Database`, a SQLite file or PostgreSQL, opened; its transactions
* tables: the tables, their revision, and the upgrade to it (migrations/)
* keys: idempotency keys
* records: actions and approvals
* audit: the stream of events
* ledger: runs of agents, and where their values came from
* budgets: the sums of cumulative limits
* tokens: what the service alone stores: access tokens, and how far each webhook has come
* opened: the stores of one database together
"""

from pdp.installed import extra

with extra("sql"):
    import sqlalchemy as _sqlalchemy  # noqa: F401 - the modules below need it
