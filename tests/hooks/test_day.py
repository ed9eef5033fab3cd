"""The calls of an ordinary day of coding: most run, some are asked, few are denied. `test_shell` has the commands."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pdp.hooks.call import Behaviour, HookCall, Moment
from pdp.hooks.decide import HookOutcome, answer, preview
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.home import open_policy
from pdp.hooks.starter import starter_files


class DayCall(NamedTuple):
    """A call of a client's tool."""

    tool: str
    arguments: dict[str, Any]
    client: str = "claude-code"


RUNS = [
    DayCall("Read", {"file_path": "lib/parser.go"}),
    DayCall("Read", {"file_path": ".github/workflows/build.yml"}),
    DayCall("Read", {"file_path": ".env.example"}),
    DayCall("LSP", {"operation": "hover", "filePath": "lib/parser.go", "line": 3, "character": 1}),
    DayCall("Glob", {"pattern": "lib/**/*.go"}),
    DayCall("Grep", {"pattern": "func New", "path": "lib", "output_mode": "content"}),
    DayCall("Edit", {"file_path": "lib/parser.go", "old_string": "x", "new_string": "y"}),
    DayCall("MultiEdit", {"file_path": "lib/parser.go", "edits": [{"old_string": "x", "new_string": "y"}]}),
    DayCall("Write", {"file_path": "docs/guide.md", "content": "# Guide"}),
    DayCall("Write", {"file_path": "Makefile", "content": "all:"}),
    DayCall("Write", {"file_path": ".gitignore", "content": "build"}),
    DayCall("NotebookEdit", {"notebook_path": "plots.ipynb", "new_source": "1"}),
    DayCall("TodoWrite", {"todos": [{"content": "test", "status": "pending", "activeForm": "testing"}]}),
    DayCall("TaskCreate", {"subject": "test", "description": "run .git/hooks and pdp"}),
    DayCall("Agent", {"description": "look", "prompt": "find the parser", "subagent_type": "Explore"}),
    DayCall("Task", {"description": "look", "prompt": "find the parser"}),
    DayCall("TaskOutput", {"task_id": "b1", "block": True}),
    DayCall("BashOutput", {"bash_id": "b1"}),
    DayCall("KillShell", {"shell_id": "b1"}),
    DayCall("Skill", {"skill": "release-notes", "args": "v2"}),
    DayCall("ToolSearch", {"query": "select:Edit"}),
    DayCall("ExitPlanMode", {"plan": "first the parser"}),
    DayCall("AskUserQuestion", {"questions": [{"question": "Which name?"}]}),
    DayCall("ListMcpResourcesTool", {"server": "docs"}),
    DayCall("WebSearch", {"query": "go generics"}),
    DayCall("update_plan", {"plan": []}, "codex"),
    DayCall("list_mcp_resources", {}, "codex"),
    DayCall("activate_skill", {"name": "release-notes"}, "gemini-cli"),
    DayCall("read_bash", {"shellId": "1", "delay": 5}, "copilot-cli"),
    DayCall("TodoWrite", {"todos": []}, "cursor"),
]
ASKS = [
    DayCall("Read", {"file_path": ".env"}),
    DayCall("Read", {"file_path": "certs/site.key"}),
    DayCall("Read", {"file_path": "~/.ssh/id_ed25519"}),
    DayCall("Read", {"file_path": "../other/main.go"}),
    DayCall("Glob", {"pattern": "~/.aws/*"}),
    DayCall("Write", {"file_path": ".github/workflows/build.yml", "content": "on: push"}),
    DayCall("Write", {"file_path": ".gitlab-ci.yml", "content": "x"}),
    DayCall("Edit", {"file_path": ".husky/pre-push", "old_string": "x", "new_string": "y"}),
    DayCall("Write", {"file_path": ".githooks/pre-push", "content": "x"}),
    DayCall("Write", {"file_path": ".envrc", "content": "x"}),
    DayCall("Write", {"file_path": ".env", "content": "A=1"}),
    DayCall("Write", {"file_path": ".devcontainer/devcontainer.json", "content": "{}"}),
    DayCall("Write", {"file_path": ".vscode/tasks.json", "content": "{}"}),
    DayCall("Edit", {"file_path": ".pre-commit-config.yaml", "old_string": "x", "new_string": "y"}),
    DayCall("Write", {"file_path": "/srv/notes.md", "content": "x"}),
    DayCall("WebFetch", {"url": "https://go.dev/ref/spec", "prompt": "generics"}),
    DayCall("ReadMcpResourceTool", {"server": "docs", "uri": "docs://guide"}),
    DayCall("read_mcp_resource", {"server": "docs", "uri": "docs://guide"}, "codex"),
]
DENIED = [
    DayCall("Edit", {"file_path": ".claude/settings.local.json", "old_string": "x", "new_string": "y"}),
    DayCall("Write", {"file_path": ".git/hooks/pre-push", "content": "x"}),
    DayCall("Write", {"file_path": ".mcp.json", "content": "{}"}),
    DayCall("ReadMcpResourceTool", {"server": "files", "uri": "file://HOME/session.yaml"}),
    DayCall("mcp__tracker__close", {"id": 7}),
    DayCall("NewTool", {}),
]


@pytest.mark.parametrize(
    ("outcome", "calls"), [(HookOutcome.RUNS, RUNS), (HookOutcome.ASKS, ASKS), (HookOutcome.DENIED, DENIED)]
)
async def test_calls_of_a_day_get_the_expected_outcome(
    tmp_path: Path, outcome: HookOutcome, calls: list[DayCall]
) -> None:
    home, work = _made(tmp_path)
    with ExitStack() as owned:
        policy, other = open_policy(home, owned), []
        for tool, arguments, client in calls:
            given = {name: _at(value, home) for name, value in arguments.items()}
            built_in = DIALECTS[client].built_in.get(tool)
            call = HookCall(client, Moment.BEFORE, "s1", "c1", tool, given, str(work), built_in)
            found = await preview(call, policy)
            if found.outcome is not outcome:
                other.append((tool, arguments, found))
        assert other == []
        # A preview leaves no records.
        assert policy.pep.approvals is not None
        assert (policy.pep.approvals.list(), [*policy.pep.audit.lines(-1, 9)]) == ([], [])  # type: ignore[attr-defined]


def _made(folder: Path) -> tuple[Path, Path]:
    """Create the HOME of a hook with the starter's files, and a workspace with the folder `lib`."""
    home, work = folder / "home", folder / "work"
    for each in (home / "state", work / ".git", work / "lib"):
        each.mkdir(parents=True)
    for name, content in starter_files("alice").items():
        (home / name).write_bytes(content)
    return home, work


def _at(value: Any, home: Path) -> Any:
    return value.replace("HOME", str(home)) if isinstance(value, str) else value


async def test_approval_in_the_client_covers_the_shape_of_a_command_for_its_session(tmp_path: Path) -> None:
    home, work = _made(tmp_path)

    async def asked(command: str, session: str = "s1", cwd: Path = work, **more: Any) -> Behaviour:
        """Ask about a command. If the client asks its user, the user approves the command, and the client runs it."""
        number = str(len(calls))
        built_in = DIALECTS["claude-code"].built_in["Bash"]
        call = HookCall(
            "claude-code", Moment.BEFORE, session, number, "Bash", {"command": command, **more}, str(cwd), built_in
        )
        found = await answer(call, policy, can_ask=True)
        calls.append((command, found.message))
        await answer(replace(call, moment=Moment.AFTER, executed={"stdout": ""}), policy)
        return found.behaviour

    calls: list[tuple[str, str]] = []
    with ExitStack() as owned:
        policy = open_policy(home, owned)
        assert await asked("pytest -q lib") is Behaviour.ASK
        assert "An approval covers this session: pytest [" in calls[-1][1]
        for command in ("pytest -q lib", "pytest -x lib", "pytest lib -k parser", "ls lib"):
            assert await asked(command) is Behaviour.PASS
        assert await asked("pytest lib", session="s2") is Behaviour.ASK
        assert await asked("pytest .", cwd=work / "lib") is Behaviour.ASK
        assert await asked("pytest lib", run_in_background=True) is Behaviour.ASK
        assert await asked("mkdir lib/new") is Behaviour.ASK
        assert await asked("pytest lib && pytest -q") is Behaviour.ASK
        for _ in range(2):
            assert await asked("git push") is Behaviour.ASK
        assert await asked("pytest lib") is Behaviour.PASS
        await answer(HookCall("claude-code", Moment.END, "s1", None, "", {}, str(work)), policy)
        assert await asked("pytest lib") is Behaviour.ASK


@pytest.mark.parametrize(
    ("command", "outcome", "shape"),
    [
        ("git status", HookOutcome.RUNS, "git [--no-pager] status "),
        ("ls lib && pytest -q", HookOutcome.ASKS_ONCE, "pytest "),
    ],
)
async def test_preview_names_the_shape_that_decides_a_command(
    tmp_path: Path, command: str, outcome: HookOutcome, shape: str
) -> None:
    home, work = _made(tmp_path)
    built_in = DIALECTS["claude-code"].built_in["Bash"]
    call = HookCall("claude-code", Moment.BEFORE, "s1", "c1", "Bash", {"command": command}, str(work), built_in)
    with ExitStack() as owned:
        found = await preview(call, open_policy(home, owned))

    file, line, _ = found.place.rsplit(":", 2)
    decisive = starter_files("alice")["commands.yaml"].decode().splitlines()[int(line) - 1]
    assert (found.outcome, file, shape in decisive) == (outcome, str(home / "commands.yaml"), True)
