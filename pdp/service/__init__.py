"""The decision service: decisions, approvals and tool lists over HTTP, for agents in any language. Extra `service`.

settings   configuration, from a file and the environment
server     what `pdp serve` starts: processes, TLS, the first token
app        the HTTP application: routes, error answers, start and end
state      the state that all requests share: tenants, authenticators, limits
tenant     what one tenant has: project, engine, stores, audit stream
requests   reading a request: who calls, the bounded body; errors with their status; the class of routes
proposals  calls of remote enforcement points: begun, finished, planned
hooks      http hooks of Claude Code
tools      what a subject's model may see; the manifest
health     alive, ready, and the record of events
openapi    the OpenAPI document, and the page that shows it
telemetry  metrics, logs with request ids, traces
models     a folder: the bodies of requests and answers
security   a folder: tokens, OpenID Connect, limits
authzen    a folder: the AuthZEN 1.0 endpoints
approvals  a folder: approvals over HTTP, server-sent events, webhooks
"""
