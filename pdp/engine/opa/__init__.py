"""The engine that asks a running OPA server.

engine:   the engine: requests, decisions, error codes, circuit breaker
client:   the address of an OPA server; HTTP for threads (`http.client`), deadlines, errors
versions: which versions of OPA may decide, and why other versions may not
aio:      HTTP for tasks (aiohttp)
server:   health, status, policies and data of an OPA server; the settings of an application's opa-python-client
"""
