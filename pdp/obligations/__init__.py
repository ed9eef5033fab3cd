"""Obligations: duties that come with a decision, and the handlers that fulfil them.

* obligations: `Obligations`, the handlers by id, and `Duties`, the obligations of one decision in their order
* handler: `ObligationHandler`, what an application derives its own from
* baseline: the handlers of the baseline's obligations
"""
