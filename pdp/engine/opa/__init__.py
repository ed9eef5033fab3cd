"""The engine that asks a running OPA.

engine: the engine: what is asked, and what of the answer is a decision, what an error with which code
client: an OPA's URL; HTTP for threads (`http.client`), deadlines, errors in our words
aio:    HTTP for tasks (aiohttp)
circuit: the circuit breaker
"""
