"""The steps in docs/hooks.md work: install the hook, hold a call, grant it, run it once, and uninstall the hook."""

import json
import re
import sys

import pytest

from tests.end_to_end.pages.test_snippets import fences
from tests.support.claude_code import ToolResult, ToolUse, claude_program, run_claude
from tests.support.hooks.machine import Machine

pytestmark = pytest.mark.process


INSTALL, GRANT, UNINSTALL = (
    fence.text for fence in fences("docs/hooks.md") if fence.info == "not run: changes settings of yours"
)
"""The commands on the page docs/hooks.md. Each runs in a separate shell."""


@pytest.fixture(autouse=True)
def programs(machine: Machine) -> None:
    (machine.folder / "bin/claude").unlink()
    (machine.folder / "bin/claude").symlink_to(claude_program())
    machine.program("pdp", f'exec {sys.executable} -m pdp "$@"')


def test_documented_hook_installation_works_with_claude_code(machine: Machine) -> None:
    machine.settings.parent.mkdir()
    machine.settings.write_bytes(b'{"model":"opus", "permissions": {"allow": []}}')
    machine.settings.chmod(0o640)
    before = machine.files()

    installed = machine.run(INSTALL, stdin="y\n")
    assert (installed.code, installed.out.splitlines()[-1]) == (0, "claude-code: guarded"), installed
    assert json.loads(machine.settings.read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["onFailure"] == "block"
    write = ToolUse("Bash", {"command": "echo once >> log"})

    def granted(told: list[ToolResult]) -> list[ToolUse]:
        """Grant the call in another terminal, and let the agent repeat the call."""
        assert not (machine.work / "log").exists()
        approval = re.fullmatch(r"run_command: echo once >> log\. If .* grant (\w+) --session .* again\.", told[0].text)
        assert approval, told
        grant = machine.run(GRANT.replace(" ID ", f" {approval[1]} "))
        assert (grant.code, grant.out.split()[0], f"granted  {approval[1]}" in grant.out) == (0, approval[1], True), (
            grant
        )
        return [write]

    run = run_claude(machine.home, machine.work, [[write], granted, [write]])
    assert [each.is_error for each in run.results] == [True, False, True], run
    assert (machine.work / "log").read_text() == "once\n"

    gone = run_claude(
        machine.home, machine.work, [[ToolUse("Bash", {"command": "pdp hook uninstall claude-code --yes"})]]
    )
    assert gone.results[0].is_error
    assert machine.run(UNINSTALL, stdin="y\n").code == 0
    after = machine.files()
    assert {name: after[name] for name in before} == before
    assert run_claude(machine.home, machine.work, [[write]]).results[0].is_error is False


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
