"""Stores in a database, shared by all processes and kept after a restart.

* database: `Database`, an open SQLite file or PostgreSQL database, and its transactions
* tables: the tables, their revision, and the upgrade to it (migrations/)
* keys: idempotency keys
* records: actions, approvals and remote calls
* audit: the stream of events; events: its columns, and how it is read and searched
* requests: recorded requests of decisions
* ledger: runs of agents, and the sources of their values
* budgets: the amounts spent of cumulative limits
* tokens: access tokens and webhook positions of the service
* opened: opens the stores of one database together
"""

from pdp.installed import extra

with extra("sql"):
    import sqlalchemy as _sqlalchemy  # noqa: F401 - the modules below need it
