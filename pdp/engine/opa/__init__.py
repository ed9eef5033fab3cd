"""The engine that asks a running OPA.

engine:   the engine: what is asked, what of the answer is a decision, what an error with which code; circuit breaker
client:   an OPA's URL; HTTP for threads (`http.client`), deadlines, errors in our words
versions: which versions of OPA may decide, and why others may not
aio:      HTTP for tasks (aiohttp)
server:   health, status, policies and data of an OPA; the settings of an application's client (opa-python-client)
"""
