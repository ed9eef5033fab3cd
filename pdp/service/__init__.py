"""The decision service: decisions, approvals and tool lists over HTTP, for agents in any language. Extra `service`.

settings   configuration, from a file and the environment
server     what `pdp serve` starts: processes, TLS, the first token
app        the HTTP application: routes, error answers, start and end
state      the state of one process, which all routes share: tenants, readiness, authenticators, limits
errors     error answers with their status and code
requests   reading a request: who calls, the bounded body; how routes are made
proposals  calls of remote enforcement points: begun, finished, planned; tools and the manifest
hooks      http hooks of Claude Code
health     alive, ready, and the record of events
openapi    all routes, their OpenAPI document, and the page that shows it
telemetry  metrics, logs with request ids, traces
models     a folder: the bodies of requests and answers
security   a folder: tokens, OpenID Connect
authzen    a folder: the AuthZEN 1.0 endpoints
approvals  a folder: approvals over HTTP, server-sent events, webhooks
"""
