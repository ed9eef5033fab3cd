"""Servers that run as a process or, where Docker runs, as a container.

containers: whether Docker runs here
opa:        OPA; tests/support/postgres.py has PostgreSQL
"""
