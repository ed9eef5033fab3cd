"""Claude Code itself follows the answers of the hook, and runs no call if the registered hook command fails."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pdp.hooks.call import Behaviour, HookAnswer, Moment, Output
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.clients import CLIENTS
from tests.support.claude_code import ToolResult, ToolUse, run_claude

pytestmark = pytest.mark.process

TOUCH = [[ToolUse("Bash", {"command": "touch ran"})]]
RAN = ToolResult("(Bash completed with no output)", is_error=False)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def _program(file: Path, script: str) -> str:
    """Write a program that runs this shell script, and return its path."""
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def _hook(command: str, event: str = "PreToolUse", **keys: Any) -> dict[str, Any]:
    return {"hooks": {event: [{"matcher": "*", "hooks": [{"type": "command", "command": command, **keys}]}]}}


def _saying(folder: Path, output: Output) -> str:
    """Return the command line of a program that prints this answer."""
    said = f"printf %s {shlex.quote(output.stdout)}; printf %s {shlex.quote(output.stderr)} >&2"
    return _program(folder / "hook", f"{said}; exit {output.exit_code}")


def _written(behaviour: Behaviour, moment: Moment = Moment.BEFORE) -> Output:
    answer = HookAnswer(behaviour, "The person\nsays so.", {"command": "touch corrected"})
    return DIALECTS["claude-code"].write(answer, moment)


def test_hook_reads_every_event_of_claude_code(tmp_path: Path, workspace: Path) -> None:
    line = _program(tmp_path / "hook", f'cat >> "{tmp_path}/sent"; echo >> "{tmp_path}/sent"')
    settings = {"hooks": {event: _hook(line, event)["hooks"][event] for event in CLIENTS["claude-code"].events}}
    turns = [[ToolUse("Bash", {"command": command})] for command in ("echo hi", "false")]
    refused = [ToolUse("WebFetch", {"url": "http://127.0.0.1:1/", "prompt": "x"})]
    run_claude(tmp_path, workspace, [*turns, refused], settings=settings)
    sent = [json.loads(text) for text in (tmp_path / "sent").read_text(encoding="utf-8").splitlines() if text]
    calls = [DIALECTS["claude-code"].read(each) for each in sent]
    assert {call.session_id for call in calls} == {sent[0]["session_id"]}
    assert {(call.cwd, call.client) for call in calls} == {(str(workspace), "claude-code")}
    assert [(call.moment, call.call_id, call.tool, call.failed) for call in calls] == [
        (Moment.BEFORE, "toolu_0", "Bash", False), (Moment.AFTER, "toolu_0", "Bash", False),
        (Moment.BEFORE, "toolu_1", "Bash", False), (Moment.AFTER, "toolu_1", "Bash", True),
        (Moment.BEFORE, "toolu_2", "WebFetch", False), (Moment.PERMISSION, None, "WebFetch", False),
        (Moment.END, None, "", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "result", "files"),
    [
        (Behaviour.PASS, RAN, ["ran"]),
        (Behaviour.CORRECT, RAN, ["corrected"]),
        # Claude Code denies the call, because no person can be asked here.
        (Behaviour.ASK, ToolResult("The person says so.", is_error=True), []),
        (Behaviour.DENY, ToolResult("The person says so.", is_error=True), []),
    ],
)
def test_claude_code_follows_every_answer(
    tmp_path: Path, workspace: Path, behaviour: Behaviour, result: ToolResult, files: list[str]
) -> None:
    line = _saying(tmp_path, _written(behaviour))
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(line))
    assert [each.name for each in workspace.iterdir()] == files
    (told,) = run.results
    assert (told.text.removeprefix(f"PreToolUse:Bash hook error: [{line}]: "), told.is_error) == (
        result.text + "\n" * (behaviour is Behaviour.DENY), result.is_error
    )  # fmt: skip


def test_claude_code_applies_its_deny_rules_to_corrected_arguments(tmp_path: Path, workspace: Path) -> None:
    settings = _hook(_saying(tmp_path, _written(Behaviour.CORRECT)))
    settings["permissions"] = {"deny": ["Bash(touch corrected)"]}
    run = run_claude(tmp_path, workspace, TOUCH, settings=settings)
    assert [each.is_error for each in run.results] == [True]
    assert not [*workspace.iterdir()]


# Hook answers for all other behaviours are written like the answer for ASK or the answer for DENY.
@pytest.mark.parametrize("behaviour", [Behaviour.ASK, Behaviour.DENY])
def test_hook_answer_to_a_permission_request_does_not_grant_permission(
    tmp_path: Path, workspace: Path, behaviour: Behaviour
) -> None:
    output = _written(behaviour, Moment.PERMISSION)
    settings = _hook(_saying(tmp_path, output), "PermissionRequest")
    (told,) = run_claude(tmp_path, workspace, TOUCH, settings=settings, tools="Read").results
    assert told.is_error
    assert told.text.startswith("The person says so.") == bool(output.stdout)
    assert not [*workspace.iterdir()]


FAULTS = {
    "killed": "kill -9 $$",
    "missing": None,
    "crashed": "echo Traceback >&2; exit 1",
    "garbage": "echo '{\"hookSpecificOutput\":'; exit 3",
    "other code": "exit 127",
}


@pytest.mark.parametrize(("fault", "flag"), [("killed", True), *((fault, False) for fault in FAULTS)])
def test_claude_code_runs_no_call_if_the_hook_fails(tmp_path: Path, workspace: Path, fault: str, flag: bool) -> None:
    """Run the registered command with a faulty interpreter, with and without the setting `onFailure` of Claude Code."""
    script = FAULTS[fault]
    broken = _program(tmp_path / "python", script) if script else str(tmp_path / "none")
    line = CLIENTS["claude-code"].line(tmp_path).replace(shlex.quote(_interpreter(tmp_path)), broken)
    assert broken in line
    keys = {"onFailure": "block"} if flag else {}
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(line, **keys))
    assert not [*workspace.iterdir()]
    assert "pdp: the call does not run" in run.results[0].text


def test_claude_code_runs_no_call_if_the_hook_has_no_policy(tmp_path: Path, workspace: Path) -> None:
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(CLIENTS["claude-code"].line(tmp_path / "none")))
    assert not [*workspace.iterdir()]
    assert f"the folder {tmp_path}/none: No such file or directory" in run.results[0].text


def test_claude_code_runs_no_call_if_the_hook_hangs(tmp_path: Path, workspace: Path) -> None:
    hanging = _program(tmp_path / "hook", "exec sleep 600")
    run_claude(tmp_path, workspace, TOUCH, settings=_hook(hanging, timeout=1, onFailure="block"))
    assert not [*workspace.iterdir()]


def _interpreter(home: Path) -> str:
    return shlex.split(shlex.split(CLIENTS["claude-code"].line(home))[2])[0]
