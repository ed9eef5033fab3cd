"""`pdp hook`: the hooks of coding agents on this machine."""

from __future__ import annotations

from pdp.cli.options import command_app

app = command_app("Have the policy asked before a coding agent's tools run: Claude Code, Codex, Cursor and others.")


@app.callback()
def _group() -> None:
    """Take the commands of the group."""
