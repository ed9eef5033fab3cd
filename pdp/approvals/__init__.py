"""Approvals: people allow calls for which the policy requires a person's approval.

* people: the people who may decide on an approval, and why a step is refused
* approvals: `Approvals`, the steps that change the records in a store (`pdp.stores.approvals`)
* lasting: `LastingGrants`, the steps of grants that reach beyond one call
* sentence: texts about an approval for people: one sentence, and all fields
"""
