"""Obligations: duties that come with a decision, and the handlers that fulfil them.

* handlers: `ObligationHandler`, the base class of an application's handlers; the handlers of the baseline;
  `Obligations`, all handlers by id; `Duties`, the obligations of one decision in their order
"""
