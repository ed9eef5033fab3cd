"""The client of the decision service, for applications without an engine of their own. Needs the extra `client`.

client      requests to the service, synchronous and asynchronous
evaluation  what a remote decision gives back, as `pdp.flow.evaluation` does
pep         an enforcement point whose decisions are made by the service
"""
