"""Helpers for tests of MCP: a server that misbehaves on demand, and a gateway in front of such servers."""
