"""The whole way, as docs/hooks.md tells it: installed, held, granted, run once, and everything undone."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.claude_code import ToolResult, ToolUse, claude_program, run_claude
from tests.support.hooks.machine import Machine

pytestmark = pytest.mark.process


def test_claude_code_is_held_granted_runs_once_and_nothing_stays(machine: Machine) -> None:
    (machine.folder / "bin/claude").unlink()
    (machine.folder / "bin/claude").symlink_to(claude_program())
    machine.program("pdp", f'exec {sys.executable} -m pdp "$@"')
    machine.settings.parent.mkdir()
    machine.settings.write_bytes(b'{"model":"opus", "permissions": {"allow": []}}')
    machine.settings.chmod(0o640)
    before = machine.files()

    assert machine.run("pdp hook install claude-code --yes").code == 0
    assert json.loads(machine.settings.read_text())["hooks"]["PreToolUse"][0]["hooks"][0]["onFailure"] == "block"
    assert machine.checked("claude-code") == {"holds": {"claude-code": True}, "gaps": []}
    write = ToolUse("Bash", {"command": "echo once >> log"})

    def granted(told: list[ToolResult]) -> list[ToolUse]:
        """The person grants in a terminal of theirs, and tells the agent to go on."""
        assert not (machine.work / "log").exists()
        (approval,) = machine.run("pdp approvals list --json").json
        assert approval["id"] in told[0].text
        grant = machine.run(f"pdp approvals grant {approval['id']} --session ~/.config/pdp/hook/approver.yaml")
        assert (grant.code, grant.out.split()[0]) == (0, "granted"), grant
        return [write]

    machine.variables["PDP_PROJECT"] = str(machine.policy / "pdp.yaml")
    run = run_claude(machine.home, machine.work, [[write], granted, [write]])
    assert [each.is_error for each in run.results] == [True, False, True], run
    assert (machine.work / "log").read_text() == "once\n"

    gone = run_claude(
        machine.home, machine.work, [[ToolUse("Bash", {"command": "pdp hook uninstall claude-code --yes"})]]
    )
    assert gone.results[0].is_error
    assert machine.run("pdp hook uninstall claude-code --yes").code == 0
    after = machine.files()
    assert {name: after[name] for name in before} == before
    assert run_claude(machine.home, machine.work, [[write]]).results[0].is_error is False
