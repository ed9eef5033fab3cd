"""The tutorial docs/tutorials/coding-agent.md works as printed, with Claude Code and a new home folder."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.end_to_end.pages.test_snippets import Page, fences
from tests.support import ROOT
from tests.support.claude_code import ToolResult, ToolUse, claude_program, run_claude
from tests.support.hooks.machine import Machine

pytestmark = pytest.mark.process

TUTORIAL = "docs/tutorials/coding-agent.md"
ONLY_HERE = "not run: changes settings of yours"
"""The comment of commands that run only in this test, because the home folder is not a user's."""


@pytest.fixture(autouse=True)
def programs(machine: Machine) -> None:
    """Add Claude Code, and a `pdp` that agrees to the changes that it shows."""
    (machine.folder / "bin/claude").unlink()
    (machine.folder / "bin/claude").symlink_to(claude_program())
    agree = 'case "$1 $2 $4" in "hook install " | "hook uninstall ") set -- "$@" --yes ;; esac'
    machine.program("pdp", f'{agree}\nexec {sys.executable} -m pdp "$@"')


class Tutorial(Page):
    """The tutorial on a machine of a user."""

    def __init__(self, machine: Machine, opa: Path) -> None:
        (machine.folder / "page").mkdir()
        super().__init__(TUTORIAL, machine.folder / "page/work", opa)
        path = f"{machine.folder / 'bin'}:{self.environment['PATH']}"
        self.environment |= {"HOME": str(machine.home), "PATH": path}
        self.environment.pop("PDP_AUDIT_KEY", None)  # The hook has none.

    def run(self, step: int) -> None:
        """Run the fences of a numbered step."""
        text = (ROOT / TUTORIAL).read_text()
        first, last = (text.partition(f"\n## {number}. ")[0].count("\n") for number in (step, step + 1))
        for fence in fences(TUTORIAL):
            if first < fence.line <= last:
                self.take(fence._replace(comment=fence.comment.removeprefix(ONLY_HERE)))


def test_coding_agent_tutorial_works_with_claude_code(machine: Machine, opa: Path) -> None:
    machine.settings.parent.mkdir()
    machine.settings.write_bytes(b'{"model":"opus", "permissions": {"allow": []}}')
    machine.settings.chmod(0o640)
    before = machine.files()
    (machine.home / ".pdp").mkdir()
    tutorial, practice = Tutorial(machine, opa), machine.home / "practice"
    rows = re.findall(r"^\| `Run in the shell: (.+)` \| (\w+)", (ROOT / TUTORIAL).read_text(), re.MULTILINE)
    calls = {outcome: [ToolUse("Bash", {"command": command})] for command, outcome in rows}

    for step in (1, 2, 3):
        tutorial.run(step)

    assert json.loads(machine.settings.read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["onFailure"] == "block"

    def granted(told: list[ToolResult]) -> list[ToolUse]:
        """Grant the call in another terminal, and let the agent repeat the call."""
        assert not (practice / "log").exists()
        approval = re.fullmatch(
            r"run_command: echo once >> log\. If .* run `(.+ grant \w+ --session .+)` in .*", told[1].text
        )
        assert approval, told
        assert machine.run(approval[1]).code == 0
        return calls["waits"]

    run = run_claude(machine.home, practice, [calls["runs"], calls["waits"], granted, calls["waits"], calls["is"]])
    assert [each.is_error for each in run.results] == [False, True, False, True, True], run
    assert (practice / "log").read_text() == "once\n"

    for step in (5, 6):
        tutorial.run(step)
    machine.end()
    tutorial.run(7)

    after = machine.files()
    assert {name: after[name] for name in before} == before
    assert not practice.exists()


@pytest.mark.parametrize(
    ("settings", "gap"),
    [
        ({"disableAllHooks": True}, "disableAllHooks turns hooks off"),
        (
            {"env": {"CLAUDE_CODE_SHELL_PREFIX": "/bin/true"}},
            "CLAUDE_CODE_SHELL_PREFIX replaces hooks, or turns them off",
        ),
    ],
    ids=["disabled", "prefix"],
)
def test_hook_check_finds_repository_settings_that_disable_hooks(
    settings: dict[str, object], gap: str, machine: Machine
) -> None:
    """With these settings, Claude Code runs a call that must be denied, so the check must report them."""
    assert machine.run("pdp hook install claude-code --yes").code == 0
    file = machine.work / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps(settings))
    assert [one["message"] for one in machine.checked()["gaps"]] == [gap]
    denied = ToolUse("Write", {"file_path": str(machine.work / ".pdp-hook.yaml"), "content": "{}"})
    assert run_claude(machine.home, machine.work, [[denied]]).results[0].is_error is False
    (machine.work / ".pdp-hook.yaml").unlink()
    file.unlink()
    assert machine.checked() == {"holds": {"claude-code": True}, "gaps": []}
    assert run_claude(machine.home, machine.work, [[denied]]).results[0].is_error
    assert not (machine.work / ".pdp-hook.yaml").exists()
