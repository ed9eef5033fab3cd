"""Approvals over HTTP. `pdp.approvals` decides who may grant, deny or withdraw an approval.

- feed: distributes the approval events of the audit stream to waiting requests
- routes: list, read, grant, deny and withdraw approvals, or wait for a decision
- grants: list, read and revoke lasting grants
- inbox: streams approval events to clients as server-sent events
- webhooks: sends signed messages about approvals to other systems
- sweep: background tasks that expire approvals and calls, and send webhooks
"""
