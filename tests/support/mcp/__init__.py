"""MCP for tests: a server that misbehaves on demand, and a gateway in front of some."""
