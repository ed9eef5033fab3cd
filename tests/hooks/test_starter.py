"""The starter files for the HOME of a hook are valid, and their scenarios pass."""

from pathlib import Path

import pytest

from pdp.documents import read_document
from pdp.hooks.home import open_policy
from pdp.hooks.starter import starter_files
from tests.support.command_line import pdp

EFFECTS = ("write_file", "run_listed_command", "run_session_command", "run_command", "delegate_task", "reach_outside")


@pytest.mark.opa
def test_starter_scenarios_pass_on_both_engines() -> None:
    done = pdp("test", Path(__file__).parent / "starter.scenarios.yaml", "--engine", "both", "--json")
    assert (done.code, done.json["failed"], done.json["passed"]) == (0, 0, 40)


def test_lint_of_the_starter_reports_only_accepted_warnings(tmp_path: Path) -> None:
    for name, content in starter_files("alice").items():
        (tmp_path / name).write_bytes(content)
    done = pdp("manifest", "lint", tmp_path / "manifest.yaml", "-g", tmp_path / "governance.yaml", "--json")
    found = [(fault["kind"], fault["message"]) for fault in done.json["faults"]]
    assert done.code == 0
    # The warnings are accepted, because clients do not report the sources of a call, and report no tool that undoes an
    # effect.
    sourced = [f"`{tool}` has effects and no `writes: proposal`, no `provenance`" for tool in EFFECTS]
    assert sorted(found) == sorted(
        ("warning", message)
        for message in (
            *["commit-low without `compensation`"] * len(EFFECTS),
            "name `reach_outside` does not start with a known verb",
            *sourced,
        )
    )


@pytest.mark.parametrize("user", ["alice", "o'neil", "a: b", 'a"b', "null", "1", "{x}", "\u00e4"], ids=ascii)
def test_starter_files_contain_any_user_name_unchanged(user: str) -> None:
    files = starter_files(user)
    for name in ("session.yaml", "approver.yaml"):
        assert read_document(name, text=files[name]).value["claims"]["sub"] == user


def test_starter_project_of_hooks_can_be_opened(tmp_path: Path) -> None:
    from contextlib import ExitStack

    files = starter_files("alice")
    assert [*files] == [
        "approver.yaml",
        "commands.yaml",
        "governance.yaml",
        "manifest.yaml",
        "pdp.yaml",
        "session.yaml",
    ]
    (tmp_path / "state").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with ExitStack() as owned:
        policy = open_policy(tmp_path, owned)
        assert {"ls", "git", "pytest", "npm"} <= policy.commands.keys()
        assert policy.session.subject.id == "alice"
