"""Runs of the examples in which untrusted content tries to make the agent call tools."""
