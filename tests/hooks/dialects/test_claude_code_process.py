"""Claude Code itself: what it does with the answers of its dialect, and where the registered line gives none."""

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
    """The path of a program that is a shell script."""
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def _hook(command: str, event: str = "PreToolUse", **keys: Any) -> dict[str, Any]:
    return {"hooks": {event: [{"matcher": "*", "hooks": [{"type": "command", "command": command, **keys}]}]}}


def _saying(folder: Path, output: Output) -> str:
    """A program that ends with an answer."""
    said = f"printf %s {shlex.quote(output.stdout)}; printf %s {shlex.quote(output.stderr)} >&2"
    return _program(folder / "hook", f"{said}; exit {output.exit_code}")


def _written(behaviour: Behaviour, moment: Moment = Moment.BEFORE) -> Output:
    answer = HookAnswer(behaviour, "The person\nsays so.", {"command": "touch corrected"})
    return DIALECTS["claude-code"].write(answer, moment)


def test_every_event_is_read(tmp_path: Path, workspace: Path) -> None:
    """Calls that succeed, fail, and are refused: what the client sends of each is a call of the same name."""
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
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "result", "files"),
    [
        (Behaviour.PASS, RAN, ["ran"]),
        (Behaviour.CORRECT, RAN, ["corrected"]),
        (Behaviour.ASK, ToolResult("The person says so.", is_error=True), []),  # nobody is there to be asked
        (Behaviour.DENY, ToolResult("The person says so.", is_error=True), []),
    ],
)
def test_it_does_what_it_is_told(
    tmp_path: Path, workspace: Path, behaviour: Behaviour, result: ToolResult, files: list[str]
) -> None:
    line = _saying(tmp_path, _written(behaviour))
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(line))
    assert [each.name for each in workspace.iterdir()] == files
    (told,) = run.results
    assert (told.text.removeprefix(f"PreToolUse:Bash hook error: [{line}]: "), told.is_error) == (
        result.text + "\n" * (behaviour is Behaviour.DENY), result.is_error
    )  # fmt: skip


def test_its_own_rules_see_what_is_corrected(tmp_path: Path, workspace: Path) -> None:
    settings = _hook(_saying(tmp_path, _written(Behaviour.CORRECT)))
    settings["permissions"] = {"deny": ["Bash(touch corrected)"]}
    run = run_claude(tmp_path, workspace, TOUCH, settings=settings)
    assert [each.is_error for each in run.results] == [True]
    assert not [*workspace.iterdir()]


@pytest.mark.parametrize("behaviour", [Behaviour.ASK, Behaviour.DENY])  # the others are written as these
def test_no_answer_gives_what_the_person_has_not(tmp_path: Path, workspace: Path, behaviour: Behaviour) -> None:
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
def test_nothing_runs_where_the_guard_fails(tmp_path: Path, workspace: Path, fault: str, flag: bool) -> None:
    """The registered line, whose interpreter is another program; with the client's own flag, and without."""
    script = FAULTS[fault]
    broken = _program(tmp_path / "python", script) if script else str(tmp_path / "none")
    line = CLIENTS["claude-code"].line(tmp_path).replace(shlex.quote(_interpreter(tmp_path)), broken)
    assert broken in line
    keys = {"onFailure": "block"} if flag else {}
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(line, **keys))
    assert not [*workspace.iterdir()]
    assert "pdp: the call does not run" in run.results[0].text


def test_nothing_runs_without_a_policy(tmp_path: Path, workspace: Path) -> None:
    run = run_claude(tmp_path, workspace, TOUCH, settings=_hook(CLIENTS["claude-code"].line(tmp_path / "none")))
    assert not [*workspace.iterdir()]
    assert f"the folder {tmp_path}/none: No such file or directory" in run.results[0].text


def test_nothing_runs_after_a_guard_that_hangs(tmp_path: Path, workspace: Path) -> None:
    hanging = _program(tmp_path / "hook", "exec sleep 600")
    run_claude(tmp_path, workspace, TOUCH, settings=_hook(hanging, timeout=1, onFailure="block"))
    assert not [*workspace.iterdir()]


def _interpreter(home: Path) -> str:
    return shlex.split(shlex.split(CLIENTS["claude-code"].line(home))[2])[0]
