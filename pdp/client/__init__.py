"""The client of the decision service, for applications without an engine. Needs the extra `client`.

client      requests to the service, synchronous and asynchronous
evaluation  evaluations and approvals from the service's answers
pep         an enforcement point whose decisions the service makes
"""
