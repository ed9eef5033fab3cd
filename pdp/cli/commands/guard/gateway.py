"""`pdp mcp-gateway`: the proxy in front of MCP servers."""

from __future__ import annotations

from pdp.cli.options import command_app

app = command_app("Have the policy asked before the tools of MCP servers run.")


@app.callback()
def _group() -> None:
    """Take the commands of the group."""
