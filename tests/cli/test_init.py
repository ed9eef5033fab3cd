"""`pdp init` and `pdp policies`: a new project that tests itself at once, and never overwrites anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdp import __version__
from tests.support import PATIENCE, ROOT
from tests.support.command_line import pdp

FILES = [
    ".github/workflows/policy.yml",
    "README.md",
    "data.yaml",
    "edges.scenarios.yaml",
    "governance.yaml",
    "manifest.yaml",
    "mutants.yaml",
    "policies/custom/concerns/replies/replies.rego",
    "policies/custom/concerns/replies/replies_test.rego",
    "pytest.ini",
    "scenarios.yaml",
    "tools.py",
]


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert pdp("init", tmp_path / "desk").code == 0
    return tmp_path / "desk"


def test_it_says_what_it_made_and_what_comes_next(tmp_path: Path) -> None:
    folder = tmp_path / "a desk"

    done = pdp("init", folder)

    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{folder}: a new project, 12 files",
        *(f"  {name}" for name in FILES),
        "Next:",
        f"  cd '{folder}'",
        "  pdp opa install",
        "  pdp test .",
    ]
    assert files(folder) == FILES


def test_the_folder_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LICENSE").write_text("ours")

    done = pdp("init", ".")

    assert "  cd" not in done.out
    assert files(tmp_path) == sorted([*FILES, "LICENSE"])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("mine")
    (tmp_path / "tools.py").symlink_to("gone")

    done = pdp("init", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: {tmp_path}: has manifest.yaml, tools.py already, and nothing is overwritten\n"
        "    hint: name a new folder, or move these files away\n"
    )
    assert (tmp_path / "manifest.yaml").read_text() == "mine"
    assert files(tmp_path) == ["manifest.yaml"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "policies").write_text("a file where a folder has to be")

    done = pdp("init", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: {tmp_path}/policies/custom/concerns/replies: cannot be written: Not a directory\n"
        "    hint: name a folder of yours\n"
    )


def test_the_requirement_is_this_version(project: Path) -> None:
    for name in ("README.md", ".github/workflows/policy.yml"):
        assert f"pip install 'tool-pdp[workbench]=={__version__}'" in (project / name).read_text()
    assert not any("@REQUIREMENT@" in (project / name).read_text() for name in FILES)


def commands(project: Path) -> list[str]:
    """What the workflow runs, but for what installs."""
    workflow = yaml.safe_load((project / ".github/workflows/policy.yml").read_text())
    return [
        step["run"] for step in workflow["jobs"]["policy"]["steps"] if "run" in step and "install" not in step["run"]
    ]


@pytest.mark.opa
def test_all_that_its_workflow_runs_passes_at_once(project: Path, opa: Path, tmp_path: Path) -> None:
    """The lines of the workflow, as a shell runs them, from an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # The command by its name, whatever environment the tests run in.
    (folder / "pdp").write_text(f'#!/bin/sh\nexec {sys.executable} -m pdp "$@"\n')
    (folder / "pdp").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PDP_OPA": str(opa), "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    said = {}
    for command in commands(project):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said[command.split()[1] if command.startswith("pdp") else "opa"] = done.stdout

    assert list(said) == ["manifest", "check", "opa", "test"]
    assert re.search(r"^PASS: \d+/\d+$", said["opa"], re.MULTILINE)
    assert files(project) == sorted([*FILES, "scenarios.html", "scenarios.xml"])


@pytest.mark.opa
@pytest.mark.usefixtures("opa")
def test_no_mutant_of_it_survives(project: Path) -> None:
    done = pdp("mutate", project, "--json")

    counts = json.loads(done.out)
    assert (counts["score"], counts["equivalent"], counts["survivors"]) == (100, 1, [])


@pytest.mark.opa
def test_its_concern_is_covered_by_its_own_tests(project: Path, opa: Path) -> None:
    done = subprocess.run(
        [opa, "test", ROOT / "policies/authz", project / "policies", "--run", "custom.concerns", "--coverage"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    covered = yaml.safe_load(done.stdout)["files"]

    [rule] = [found for name, found in covered.items() if name.endswith("/replies.rego")]
    assert rule["coverage"] == 100


@pytest.mark.opa
def test_it_is_formatted_and_has_no_fault(project: Path, opa: Path) -> None:
    subprocess.run([opa, "fmt", "--fail", "--list", project / "policies"], check=True)
    subprocess.run([opa, "check", "--strict", ROOT / "policies/authz", project / "policies"], check=True)


def test_where_the_baseline_is() -> None:
    done = pdp("policies", "path")

    assert (done.code, done.out, done.err) == (0, f"{ROOT / 'policies'}\n", "")
