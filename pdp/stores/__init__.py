"""Stores of data that outlives a call. Each kind of data has a record, a store in memory and a store in a database.

* keys: idempotency keys, `IdempotencyStore`
* actions: staged effects, `ActionStore`
* approvals: approval requests and grants, `ApprovalStore`
* budgets: the amounts spent of cumulative limits, `BudgetStore` and `MemoryBudgets`
* remote_calls: calls whose tool runs at another enforcement point
* memory: the other stores in memory
* sql/: the stores in a database, SQLite or PostgreSQL
* url: opens the stores that a URL names
"""
