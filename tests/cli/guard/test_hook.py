"""`pdp hook` installs, checks and uninstalls hooks in the settings of clients."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hooks.machine import Machine

pytestmark = pytest.mark.process


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.end()


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_install_without_confirmation_leaves_settings_unchanged(answer: str, machine: Machine) -> None:
    before = machine.files()
    asked = machine.pdp("hook", "install", "claude-code", stdin=answer)
    assert (asked.code, asked.err) == (1, "Write this? [y/N]:Aborted!\n"), asked
    assert f"+++ {machine.settings}" in asked.out
    assert machine.files() == before


def test_hooks_of_several_clients_are_installed_and_uninstalled(machine: Machine) -> None:
    clients = ("claude-code", "codex", "cursor", "gemini-cli", "copilot-cli")
    before = machine.files()
    assert machine.pdp("hook", "install", *clients, stdin="y\n").code == 0
    policy = {file.name: file.read_bytes() for file in machine.policy.iterdir() if file.is_file()}
    assert policy.keys() == {
        "approver.yaml", "commands.yaml", "governance.yaml", "manifest.yaml", "pdp.yaml", "session.yaml",
    }  # fmt: skip
    installed = machine.files()
    again = machine.pdp("hook", "install", *clients)
    assert (again.code, again.err) == (0, "")
    assert machine.files() == installed
    checked = machine.checked()
    assert checked["holds"] == {name: name != "codex" for name in sorted(clients)}, checked
    (machine.policy / "commands.yaml").write_text("runs: [pwd]\n")
    assert machine.pdp("hook", "uninstall", *clients, "--yes", "--json").json["changes"][1] == {
        "file": f"{machine.home}/.codex/hooks.json", "note": "is restored to its original",
    }  # fmt: skip
    assert machine.files() == before
    assert machine.pdp("hook", "install", "cursor", "--yes").code == 0
    assert {file.name: file.read_bytes() for file in machine.policy.iterdir() if file.is_file()} == {
        **policy, "commands.yaml": b"runs: [pwd]\n",
    }  # fmt: skip


def test_hook_is_installed_in_one_repository(machine: Machine) -> None:
    assert machine.pdp("hook", "install", "claude-code", "--scope", "project", "--yes").code == 0
    assert machine.files() == {}
    assert (machine.work / ".claude/settings.json").exists()
    assert machine.checked() == {"holds": {"claude-code": True}, "gaps": []}
    assert machine.pdp("hook", "uninstall", "claude-code", "--scope", "project", "--yes").code == 0
    assert [file.name for file in machine.work.iterdir()] == [".git"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "claude"], "unknown client: claude"),
        (["check"], "no client has the hook"),
        (["check", "codex", "x"], "unknown client: x"),
    ],
)
def test_unknown_client_is_rejected(words: list[str], said: str, machine: Machine) -> None:
    done = machine.pdp("hook", *words)
    assert (done.code, done.out, done.err.split("\n")[0]) == (2, "", f"error: {said}")
    assert "claude-code, codex, cursor" in done.err.split("\n")[1]


def test_hook_try_asks_for_quotes_around_a_command_of_several_words(machine: Machine) -> None:
    done = machine.pdp("hook", "try", "git", "push", "origin")
    hint = "    hint: pdp hook try 'git push origin'"
    assert (done.code, done.out, done.err) == (2, "", f"error: write the command in quotes\n{hint}\n")


def test_commands_about_a_store_name_the_folder_of_the_hook(machine: Machine) -> None:
    assert "coding agent" not in machine.pdp("approvals", "list").err
    machine.pdp("hook", "install", "claude-code", "--yes")
    for command in (("approvals", "list"), ("audit", "show")):
        hint = f"    hint: for the coding agent's calls: cd {shlex.quote(str(machine.policy))}. Otherwise, "
        assert machine.pdp(*command).err.split("\n")[1].startswith(hint)


def test_hook_check_that_finds_a_problem_exits_with_1(machine: Machine) -> None:
    machine.pdp("hook", "install", "claude-code", "--yes")
    machine.settings.write_text("{}")
    done = machine.pdp("hook", "check")
    events = ("PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "SessionEnd")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        *(
            line
            for event in events
            for line in (
                f"claude-code: {machine.settings}: {event}: our hook is missing",
                "    hint: run `pdp hook install` again",
            )
        ),
        "claude-code: NOT GUARDED",
    ]


def test_hook_try_shows_the_outcome_and_the_line_that_decides(machine: Machine) -> None:
    missing = machine.pdp("hook", "try", "pwd")
    assert (missing.code, missing.err.split("\n")[0]) == (2, f"error: there is no policy in {machine.policy}")
    machine.pdp("hook", "install", "claude-code", "--yes")
    (machine.work / ".pdp-hook.yaml").write_text("deny: [search_web]\n")
    governance = (machine.policy / "governance.yaml").read_text().splitlines()

    pushed = machine.pdp("hook", "try", "git push")
    line = governance.index("  run_command: *entry") + 1
    assert (pushed.code, pushed.err) == (3, "")
    assert pushed.out.splitlines() == [
        "asks each time: run_command: git push",
        f"    decided by {machine.policy}/governance.yaml:{line}:3",
    ]
    searched = machine.pdp("hook", "try", "--tool", "WebSearch", "--input", '{"query": "x"}', "--json")
    assert searched.json == {
        "outcome": "denied",
        "tool": "reach_outside",
        "shown": "reach_outside: x",
        "reason": f"the rule at {machine.work}/.pdp-hook.yaml:1:8 of this repository denies this call; the user can "
        "change the rule",
        "place": f"{machine.work}/.pdp-hook.yaml:1:8",
    }
    codes = {
        0: ("--client", "codex", "--tool", "update_plan"),
        4: ("--tool", "Read", "--input", '{"file_path": "HOME/.config/pdp/hook/session.yaml"}'),
        2: ("--tool", "Read", "--input", "[]"),
    }
    for code, words in codes.items():
        done = machine.pdp("hook", "try", *(word.replace("HOME", str(machine.home)) for word in words))
        assert done.code == code, done
    assert machine.run(f"PDP_PROJECT={machine.policy}/pdp.yaml pdp approvals list --json").json == []
    assert machine.run(f"PDP_PROJECT={machine.policy}/pdp.yaml pdp audit show").out == ""


@pytest.mark.parametrize(("name", "text"), [("manifest.yaml", "tools: 5\n"), ("session.yaml", "claims: 5\n")])
def test_hook_with_an_unusable_policy_is_not_installed(name: str, text: str, machine: Machine) -> None:
    machine.policy.mkdir(parents=True, mode=0o700)
    (machine.policy / name).write_text(text)
    done = machine.pdp("hook", "install", "claude-code", "--yes")
    assert (done.code, done.out) == (2, "")
    assert f"{machine.policy}/{name}:1:" in done.err
    assert machine.files() == {}


def test_hook_with_a_policy_writable_by_others_is_not_installed(machine: Machine) -> None:
    machine.policy.mkdir(parents=True)
    machine.policy.chmod(0o777)
    done = machine.pdp("hook", "install", "claude-code", "--yes")
    assert (done.code, machine.files()) == (2, {})
    assert f"chmod 700 {machine.policy}" in done.err
