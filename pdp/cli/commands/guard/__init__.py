"""Commands that put an enforcement point in front of programs that people run.

- hook.py: `pdp hook`
- gateway.py: `pdp mcp-gateway`
"""
