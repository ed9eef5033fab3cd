"""Decisions, approvals and tool lists over HTTP, for agents in any language. Needs the extra `service`.

- settings: the configuration, from a file and the environment
- server: runs `pdp serve`: the worker processes, TLS and the first access token
- app: the HTTP application: routes, error answers, startup and shutdown
- state: the state that all routes of a process share: tenants, readiness, authenticators, limits
- errors: error answers with their status and code
- requests: authenticates callers, reads request bodies within limits, and defines the route classes
- proposals: calls that remote enforcement points propose and run; also plans, tool lists and the manifest
- hooks: HTTP hooks of Claude Code
- health: liveness, readiness, metrics, and the audit stream
- openapi: all routes, the OpenAPI document, and a page that shows the document
- telemetry: counters, logs with request ids, traces
- metrics: the answer of `/metrics`, with the present state of engines and stores
- models/: the bodies of requests and answers
- security/: access tokens and OpenID Connect
- authzen/: the AuthZEN 1.0 endpoints
- approvals/: approvals over HTTP, server-sent events, webhooks
"""
