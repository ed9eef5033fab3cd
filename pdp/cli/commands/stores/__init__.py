"""Commands on stored data. A module is imported when its group runs.

stores     `pdp db`, `pdp keys` and `pdp budgets`: the database, and calls with an unknown outcome
approvals  list, show and decide approvals
grants     list, show and revoke lasting grants
token      access tokens of the decision service
"""
