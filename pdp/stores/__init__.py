"""Stores: what outlives a call. Each kind has a record, a store in memory and one in a database.

* keys: idempotency keys, `IdempotencyStore`
* actions: staged effects, `ActionStore`
* approvals: what people are asked to approve, `ApprovalStore`
* budgets: the sums of cumulative limits, `BudgetStore`, with the one in memory
* remote_calls: calls that remote enforcement points run
* memory: the stores in memory
* sql/: the stores in a database, SQLite or PostgreSQL
* url: the stores that a URL names
"""
