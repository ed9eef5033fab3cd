"""Approvals over HTTP, on the rules of `pdp.approvals`.

feed      what happens to approvals, in the order of the audit stream: for those who wait
routes    list, show and wait, grant, deny, withdraw
inbox     server-sent events
webhooks  signed messages to other systems
sweep     what is done by itself: approvals whose time is over, webhooks
"""
