"""Servers for tests that run as a process, or in a container if Docker runs.

containers: whether Docker runs here
opa:        OPA (PostgreSQL is in tests/support/postgres.py)
"""
