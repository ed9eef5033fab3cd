"""Commands on what outlives a call, through the stores' protocols. A module is imported when its group is run.

db         the database's tables
approvals  what people are asked to approve, and their decisions on it
keys       idempotency keys whose outcome is unknown, and settling them
budgets    what calls of unknown outcome hold of cumulative limits, and settling it
token      access tokens of the decision service
named      the stores that a command names, and its step recorded in a stream
"""
