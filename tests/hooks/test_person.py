"""Claude Code asks its user about a held call. If the user says yes, the call runs and the record names the user."""

import json
import sys
from pathlib import Path

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    PermissionResultAllow,
    PermissionResultDeny,
)

from pdp.hooks import ask
from tests.support.claude_code import ToolUse, claude_program, model
from tests.support.command_line import pdp_process
from tests.support.hooks.processes import hooks_in, tool_call

pytestmark = pytest.mark.process


async def test_claude_code_asks_its_user_about_a_held_call(tmp_path: Path) -> None:
    work, person = tmp_path / "work", tmp_path / "person"
    for folder in (work / ".git", person):
        folder.mkdir(parents=True)
    asked: list[str] = []

    async def answered(_: str, given: dict[str, object], __: object) -> PermissionResultAllow | PermissionResultDeny:
        asked.append(str(given["command"]))
        return PermissionResultAllow() if "log" in asked[-1] else PermissionResultDeny(message="no")

    write, refused = ToolUse("Bash", {"command": "echo once >> log"}), ToolUse("Bash", {"command": "echo >> other"})
    last = ToolUse("Bash", {"command": "echo >> last"})
    with hooks_in(tmp_path) as hooks, model([[write], [refused], [write], [last]]) as (url, results):
        hooks.ask(tool_call(work))
        line = f"{sys.executable} -I -S {ask.__file__} claude-code {hooks.home} || exit 2"
        entry = [{"matcher": "*", "hooks": [{"type": "command", "command": line}]}]
        events = ("PreToolUse", "PermissionRequest", "PostToolUse", "SessionEnd")
        options = ClaudeAgentOptions(
            cwd=work,
            can_use_tool=answered,
            settings=json.dumps({"hooks": dict.fromkeys(events, entry)}),
            cli_path=claude_program(),
            env={
                "HOME": str(person),
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
        )
        async with ClaudeSDKClient(options) as client:
            await client.query("work")
            async for _ in client.receive_response():
                pass
        assert asked == ["echo once >> log", "echo >> other", "echo once >> log", "echo >> last"]
        assert [result.is_error for result in results()] == [False, True, False, True]
        assert (work / "log").read_text() == "once\nonce\n"
        assert not (work / "other").exists()
        shown = pdp_process("approvals", "list", "--all", "--json", PDP_PROJECT=str(hooks.home / "pdp.yaml"))
        states = [(each["state"], [grant["sub"] for grant in each["grants"]]) for each in json.loads(shown.out)]
        # The second approval is withdrawn by the next question, the last one by the end of the session.
        assert states == [("consumed", ["alice"]), ("withdrawn", []), ("consumed", ["alice"]), ("withdrawn", [])]
        assert pdp_process("audit", "verify", PDP_PROJECT=str(hooks.home / "pdp.yaml")).code == 0
