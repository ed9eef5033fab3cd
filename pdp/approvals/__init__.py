"""Approvals: people who allow one call that the policy wants a person for.

* approvals: `Approvals`, the rules over a store (`pdp.stores.approvals` has the record), and the action that follows
"""
