"""The AuthZEN Authorization API 1.0, for any AuthZEN client.

- policy: the policy that decides AuthZEN requests
- evaluation: single and batch evaluations, with reasons, obligations and approvals in the answers
- search: pages of the subjects, resources and actions that the policy permits
- entities: builds the policy's input from an AuthZEN request
- routes: the endpoints and their metadata
"""
