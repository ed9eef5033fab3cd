"""Obligations: duties that come with a decision, and the handlers that fulfil them.

* handlers: `ObligationHandler`, what an application derives its own from, and the baseline's; `Obligations`, all of
  them by id; `Duties`, the obligations of one decision in their order
"""
