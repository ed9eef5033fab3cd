"""The AuthZEN Authorization API 1.0: what any AuthZEN client can ask.

policy      the policy that answers
evaluation  one request, or several with their semantics; reasons, obligations, approvals of the answer
search      subjects, resources and actions that a decision permits, page by page
entities    reading and completing subject, action, resource and context
routes      the endpoints, and the metadata
"""
