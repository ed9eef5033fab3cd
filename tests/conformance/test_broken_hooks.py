"""The suite on hooks that are registered or answered wrongly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pdp.testing.conformance.run import run
from tests.conformance.claude import ClaudeCodeTarget
from tests.conformance.hooks import ClaudeCodeHook, CodexHook, HookTarget

pytestmark = pytest.mark.process


class Unguarded(ClaudeCodeHook):
    """Its command line ends as the program does, however that ends."""

    def line(self, home: Path) -> str:
        return super().line(home).partition(" || ")[0] + "'"


class OtherDialect(CodexHook):
    """Is answered as Claude Code is, which for Codex is no answer."""

    def line(self, home: Path) -> str:
        return ClaudeCodeHook().line(home)

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {**super().before(tool, arguments, call_id), "mcp_server": {"name": "kit", "source": "user"}}


class Silent(CodexHook):
    """Loses the reason, without which exit code 2 is nothing to Codex."""

    def line(self, home: Path) -> str:
        return f"{super().line(home)} 2> /dev/null"


@pytest.mark.parametrize(
    ("target", "case", "finding"),
    [
        (Unguarded, "cancelled call", """UnsafeError("read_note ran with {'note': 'given up'}")"""),
        (OtherDialect, "correct", """UnsafeError("fetch_page ran with {'url': 'a', 'limit': 99}")"""),
        (Silent, "deny", """UnsafeError("wipe_disk ran with {'disk': 'a'}")"""),
    ],
    ids=["unguarded", "other dialect", "silent"],
)
def test_a_hook_that_fails_open_is_found(target: type[HookTarget], case: str, finding: str, tmp_path: Path) -> None:
    assert run(target(), tmp_path, [case]) == {case: f"fail: {finding}"}


class Rewriting(ClaudeCodeTarget):
    """Another hook beside ours answers with arguments of its own."""

    said_beside: Mapping[str, Any] = {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"note": "rewritten"}}
    }


def test_claude_code_runs_what_another_hook_makes_of_a_call(tmp_path: Path) -> None:
    """No hook can hold that; docs/enforcement-points.md says so."""
    case = "handler registered beside ours"
    found = run(Rewriting(), tmp_path, [case])
    assert found == {case: """fail: UnsafeError("read_note ran with {'note': 'rewritten'}")"""}
