"""Commands that guard the tool calls of other programs.

- serve.py: `pdp serve`
- console.py: `pdp console`
- hook.py: `pdp hook`
- gateway.py: `pdp mcp-gateway`
"""
