"""Claude Code itself: what it does with answers of a hook. Facts that the dialect and the installation rely on."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.claude_code import ToolResult, ToolUse, run_claude

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def _hooks(command: str, **keys: Any) -> dict[str, Any]:
    return {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": command, **keys}]}]}


def test_the_stand_in_gets_results_in_the_order_of_calls(tmp_path: Path, workspace: Path) -> None:
    (workspace / "file").write_text("text", encoding="utf-8")
    run = run_claude(tmp_path, workspace, [
        [ToolUse("Bash", {"command": "sleep 0.2; false"}), ToolUse("Read", {"file_path": str(workspace / "file")})],
        lambda told: [ToolUse("Bash", {"command": f"echo {len(told)}"})],
    ])  # fmt: skip
    assert (run.exit_code, run.said["result"]) == (0, "done"), run.log
    assert run.results == [
        ToolResult("Exit code 1", is_error=True), ToolResult("1\ttext", is_error=False), ToolResult("2", is_error=False)
    ]  # fmt: skip


def test_what_is_written_to_the_hook(tmp_path: Path, workspace: Path) -> None:
    seen = tmp_path / "seen"
    settings = {"hooks": _hooks(f'{sys.executable} -c \'print(input(), file=open("{seen}", "a"))\'')}
    run = run_claude(tmp_path, workspace, [[ToolUse("Bash", {"command": "echo hi"})]], settings=settings)
    assert run.results == [ToolResult("hi", is_error=False)], run.log
    told = json.loads(seen.read_text(encoding="utf-8"))
    given = {key: told[key] for key in ("cwd", "hook_event_name", "tool_name", "tool_input", "tool_use_id")}
    assert given == {
        "cwd": str(workspace), "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "echo hi"}, "tool_use_id": "toolu_0",
    }  # fmt: skip
