"""Commands on what outlives a call, through the stores' protocols. A module is imported when its group is run.

stores     the stores that a command names; the database's tables, keys and budgets whose outcome is unknown
approvals  what people are asked to approve, and their decisions on it
token      access tokens of the decision service
"""
