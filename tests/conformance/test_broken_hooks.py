"""The suite detects hooks that are registered wrongly, and hooks that give wrong answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pdp.testing.conformance.run import run
from tests.conformance.claude import ClaudeCodeTarget
from tests.conformance.hooks import ClaudeCodeHook, CodexHook, HookTarget

pytestmark = pytest.mark.process


class Unguarded(ClaudeCodeHook):
    """Registers a command line that exits like the hook's program, even if the program crashes."""

    def line(self, home: Path) -> str:
        return super().line(home).partition(" || ")[0] + "'"


class OtherDialect(CodexHook):
    """Sends Codex the answers for Claude Code, which Codex ignores."""

    def line(self, home: Path) -> str:
        return ClaudeCodeHook().line(home)

    def before(self, tool: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
        return {**super().before(tool, arguments, call_id), "mcp_server": {"name": "kit", "source": "user"}}


class Silent(CodexHook):
    """Discards the reason on standard error, because Codex ignores exit code 2 if there is no reason."""

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
def test_suite_reports_hooks_that_fail_open(target: type[HookTarget], case: str, finding: str, tmp_path: Path) -> None:
    assert run(target(), tmp_path, [case]) == {case: f"fail: {finding}"}


class Rewriting(ClaudeCodeTarget):
    """A client with another hook, which changes the arguments of a call."""

    other_answer: Mapping[str, Any] = {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"note": "rewritten"}}
    }


def test_claude_code_runs_arguments_changed_by_another_hook(tmp_path: Path) -> None:
    """If another hook changes the arguments, our hook cannot prevent it. The documentation says so."""
    case = "handler registered beside ours"
    result = run(Rewriting(), tmp_path, [case])
    assert result == {case: """fail: UnsafeError("read_note ran with {'note': 'rewritten'}")"""}
