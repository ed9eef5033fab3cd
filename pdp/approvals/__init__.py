"""Approvals: people allow calls for which the policy requires a person's approval.

* approvals: `Approvals`, the rules for changing the records in a store (`pdp.stores.approvals`)
* lasting: `LastingGrants`, the rules for grants that reach beyond one call
* rules: the people who may decide, and why a step is rejected
"""
