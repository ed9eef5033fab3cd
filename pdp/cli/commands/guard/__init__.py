"""Commands that keep running and answer other programs.

- serve.py: `pdp serve`
- hook.py: `pdp hook`
- gateway.py: `pdp mcp-gateway`
"""
