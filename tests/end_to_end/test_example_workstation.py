"""The workstation example of the tool layer document: its tools, and its agent in a separate process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdp import Pep
from pdp.contract.registry.registry import Registry
from pdp.workbench.scenarios.files.tools_file import ToolsFile
from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, pdp

WORKSTATION = ROOT / "examples/workstation"
AGENT = """\
grep_files: available
read_file: available
roll_dice: available
call-1 grep_files: 'notes.txt:2026-07-03 dice for the meeting: two with six sides\\n'
call-2 roll_dice: '{"results":[3,2],"sum":5}'
call-3 read_file: 'router 2\\nswitch 4\\nbuild server 1\\n'
call-4 read_file: 'TOOL_EXECUTION_FAILED: argument path: leads out of the working folder'
call-5 delete_file: "INVALID_TOOL_NAME: 'delete_file' is not a tool of manifest 2026.1.0"
3 results, 2 errors
"""
SESSION = {"claims": {"sub": "ann", "emts": {"files.read": True}}}


def agent(*options: object) -> str:
    """Run the agent in a process, in the repository's folder, and return its output."""
    done = started(*options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def started(*options: object, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the agent in a process, in the repository's folder, and return the completed process with its exit code."""
    return subprocess.run(
        [sys.executable, str(WORKSTATION / "agent.py"), *map(str, options)],
        stdout=stdout, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=environment(), timeout=PATIENCE, text=True,
    )  # fmt: skip


@pytest.mark.process
def test_agent_prints_the_output_in_its_readme() -> None:
    readme = (WORKSTATION / "README.md").read_text(encoding="utf-8")

    assert agent() == AGENT
    assert "".join(f"    {line}\n" for line in AGENT.splitlines()) in readme


@pytest.mark.process
def test_tool_read_file_is_unavailable_if_its_folder_does_not_exist(tmp_path: Path) -> None:
    lines = agent("--folder", tmp_path / "nowhere").splitlines()

    assert lines[:3] == [
        "grep_files: available", "read_file: the working folder nowhere is not there", "roll_dice: available",
    ]  # fmt: skip
    assert lines[5] == "call-3 read_file: 'TOOL_EXECUTION_FAILED: argument path: is no file of the working folder'"
    assert lines[-1] == "2 results, 3 errors"


@pytest.mark.process
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file or directory\n    hint: give the path of a bundle file\n"),
        (
            b"no bundle at all",
            "damaged, or not a gzip file\n    hint: copy the file again, or build the bundle with `pdp bundle build`\n",
        ),
    ],
    ids=["missing", "damaged"],
)
def test_agent_with_a_missing_or_damaged_bundle_exits_with_2(
    content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.tar.gz"
    if content is not None:
        bundle.write_bytes(content)

    done = started("--bundle", bundle)

    assert (done.returncode, done.stderr) == (2, f"error: {bundle}: {complaint}")


@pytest.mark.process
def test_closed_pipe_ends_the_agent_without_a_message() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = started(stdout=write)
    finally:
        os.close(write)

    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.opa
def test_custom_policies_deny_a_call_before_the_tool_runs(tmp_path: Path, opa: Path) -> None:
    bundle = tmp_path / "workstation.tar.gz"
    built = pdp(
        "bundle", "build", "-o", bundle, "--policies", WORKSTATION / "policies", "-m", WORKSTATION / "manifest.yaml",
        "-g", WORKSTATION / "governance.yaml",
    )  # fmt: skip
    assert (built.code, built.err) == (0, "")

    denied = "POLICY_VIOLATION: DENY: files.outside: The path leads out of the working folder."
    expected = AGENT.replace("TOOL_EXECUTION_FAILED: argument path: leads out of the working folder", denied)
    assert agent("--bundle", bundle) == expected


@pytest.fixture
def registry() -> Registry:
    return Registry.from_files(
        WORKSTATION / "manifest.yaml", governance=WORKSTATION / "governance.yaml", capabilities=["filesystem"]
    )


def workstation(folder: Path | None, **options: Any) -> Any:
    """Return a workstation of the example that works in the folder."""
    functions, _ = ToolsFile(WORKSTATION / "tools.py").read(())
    return type(functions["read_file"].__self__)(folder, **options)  # type: ignore[attr-defined]


def test_agent_does_not_list_unavailable_or_ungranted_tools(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = workstation(None)
    registry.bind("roll_dice", example.roll_dice)
    registry.bind("read_file", example.read_file, available=example.folder_is_there)
    ungranted = Registry.from_files(WORKSTATION / "manifest.yaml", governance=WORKSTATION / "governance.yaml")

    assert {each.name: each.reason for each in registry.check_availability()} == {
        "grep_files": "", "read_file": "no working folder is configured", "roll_dice": "",
    }  # fmt: skip
    assert [each["function"]["name"] for each in registry.definitions()] == ["grep_files", "roll_dice"]
    assert {each.name: each.reason for each in ungranted.check_availability()} == {
        "grep_files": "capability filesystem is not granted", "read_file": "no function is bound",
        "roll_dice": "no function is bound",
    }  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next(each.reason for each in registry.check_availability()) == "program grep is not found"


def test_runner_reports_a_call_to_an_unavailable_tool(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The enforcement point does not check the availability of a tool, so the tool's runner reports the failure."""
    pep = Pep.from_registry(registry)
    monkeypatch.setenv("PATH", str(tmp_path))

    evaluation = pep.call({"tool": "grep_files", "arguments": {"pattern": "x"}}, SESSION)

    failure = evaluation.outcome.failure
    assert failure is not None
    assert (evaluation.verdict, failure.code, failure.message) == (
        "ALLOW", "TOOL_UNAVAILABLE", "grep_files cannot run now: program grep is not found",
    )  # fmt: skip


def test_file_tool_does_not_follow_a_link_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "way-out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "inside.txt").write_text("inside")
    (folder / "link.txt").symlink_to(folder / "inside.txt")
    (folder / "bytes.txt").write_bytes(b"\xff")
    example = workstation(folder)

    assert example.read_file("link.txt") == "inside"
    said = {}
    for path in ("way-out.txt", str(tmp_path / "secret.txt"), "../secret.txt", "nothing.txt", ".", "bytes.txt"):
        with pytest.raises(Exception, match="argument path") as caught:
            example.read_file(path)
        said[path] = str(caught.value)
    assert list(said.values()) == [
        "argument path: leads out of the working folder",
        "argument path: leads out of the working folder",
        "argument path: leads out of the working folder",
        "argument path: is no file of the working folder",
        "argument path: is no file of the working folder",
        "argument path: is not UTF-8 text",
    ]


def test_dice_tool_without_a_seed_returns_only_numbers_that_the_dice_have() -> None:
    rolled = workstation(None).roll_dice(10, 4)

    assert set(rolled["results"]) <= {1, 2, 3, 4}
    assert rolled["sum"] == sum(rolled["results"])
