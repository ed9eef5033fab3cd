"""Approvals: people allow calls for which the policy requires a person's approval.

* approvals: `Approvals`, the rules for changing the records in a store (`pdp.stores.approvals`)
"""
