"""Commands that guard the tool calls of other programs.

- serve.py: `pdp serve`
- hook.py: `pdp hook`
- gateway.py: `pdp mcp-gateway`
"""
