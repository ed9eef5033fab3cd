"""The hook configuration of each client, and the exit codes of the command that this configuration registers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdp.hooks import ask
from pdp.hooks.dialects import DIALECTS
from pdp.hooks.install.clients import CLIENTS
from tests.support.hooks.machine import Machine

HOME = Path("/home/ann's/hook")


def line(client: str) -> str:
    words = f"{sys.executable} -I -S {ask.__file__} {client} "
    # The folder name is quoted for the inner command, and then the inner command is quoted for the shell.
    folder = """'"'"'/home/ann'"'"'"'"'"'"'"'"'s/hook'"'"'"""
    return f"/bin/sh -c '{words}{folder} || {{ echo pdp: the call does not run >&2; exit 2; }}'"


def entries() -> dict[str, Any]:
    commands = {name: {"type": "command", "command": line(name)} for name in CLIENTS}
    return {
        **{name: {"matcher": "*", "hooks": [command]} for name, command in commands.items()},
        "cursor": {**commands["cursor"], "failClosed": True},
        "copilot-cli": {"type": "command", "bash": line("copilot-cli")},
    }


def test_hook_entry_in_the_settings_has_the_format_of_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert {name: client.entry(HOME) for name, client in CLIENTS.items()} == entries()
    assert CLIENTS.keys() == DIALECTS.keys()


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "blocks"),
    [
        ("echo '2.1.330 (Claude Code)'", True),
        ("echo 2.1.295", True),
        ("echo 2.1.294", False),
        ("echo 10.0.0", True),
        ("echo latest", False),
        ("echo 2.1.330; exit 1", False),
        ("printf '\\377'", False),
    ],
)
def test_hook_entry_has_on_failure_only_for_client_versions_that_support_on_failure(
    script: str, blocks: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.program("claude", script)
    monkeypatch.setenv("PATH", f"{machine.folder / 'bin'}:{os.environ['PATH']}")
    (handler,) = CLIENTS["claude-code"].entry(HOME)["hooks"]
    expected = {"type": "command", "command": line("claude-code"), **({"onFailure": "block"} if blocks else {})}
    assert handler == expected


@pytest.mark.process
@pytest.mark.parametrize(
    "shell", [["/bin/sh", "-c"], ["/bin/bash", "-lc"], ["/bin/bash", "--posix", "-c"]], ids=" ".join
)
@pytest.mark.parametrize(
    ("name", "script", "code"),
    [
        ("answers", "exit 0", 0),
        ("denies", "exit 2", 2),
        ("crashes", "exit 1", 2),
        ("is-killed", "kill -9 $$", 2),
        ("is-missing", None, 2),
    ],
)
def test_hook_command_denies_unless_its_program_exits_with_an_answer(
    shell: list[str], name: str, script: str | None, code: int, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(machine.folder / "bin/python"))
    if script is not None:
        machine.program("python", script)
    ended = subprocess.run([*shell, CLIENTS["codex"].line(HOME)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.endswith("pdp: the call does not run\n" if code else "")


@pytest.mark.parametrize(
    ("client", "variables", "file"),
    [
        ("claude-code", {}, "person/.claude/settings.json"),
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/x/claude"}, "/x/claude/settings.json"),
        ("claude-code", {"CLAUDE_CONFIG_DIR": "relative"}, "work/relative/settings.json"),
        ("claude-code", {"CLAUDE_CONFIG_DIR": ""}, "person/.claude/settings.json"),
        ("codex", {"CODEX_HOME": "/x/codex"}, "/x/codex/hooks.json"),
        ("cursor", {"CLAUDE_CONFIG_DIR": "/x"}, "person/.cursor/hooks.json"),
        ("gemini-cli", {}, "person/.gemini/settings.json"),
        ("copilot-cli", {"COPILOT_HOME": "/x/copilot"}, "/x/copilot/hooks/pdp.json"),
    ],
)
def test_settings_files_are_known_for_each_client(
    client: str, variables: dict[str, str], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name, value in {"HOME": str(tmp_path / "person"), **variables}.items():
        monkeypatch.setenv(name, value)
    assert CLIENTS[client].path("user") == tmp_path / file
    projects = {name: str(each.path("project").relative_to(Path.cwd())) for name, each in CLIENTS.items()}
    assert projects == {
        "claude-code": ".claude/settings.json", "codex": ".codex/hooks.json", "cursor": ".cursor/hooks.json",
        "gemini-cli": ".gemini/settings.json", "copilot-cli": ".github/hooks/pdp.json",
    }  # fmt: skip
