"""Servers for tests that run as a process, or in a container if Docker runs.

containers: whether Docker runs here
alerts:     promtool, with the alerts for a running service
opa:        OPA (PostgreSQL is in tests/support/postgres.py)
"""
