"""Obligations: duties that come with a decision, and the handlers that fulfil them.

* obligations: `Obligations`, the handlers by id, and `Duties`, the obligations of one decision in their order
* handlers: `ObligationHandler`, what an application derives its own from, and the baseline's
"""
