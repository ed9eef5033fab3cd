"""The built wheel, installed into an empty environment, has all that a decision needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support import ROOT, payments

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT], check=True
    )
    [wheel] = folder.glob("tool_pdp-*.whl")
    venv.create(folder / "env", with_pip=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run(
        [scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], check=True
    )
    return scripts


def run(installed: Path, *arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # Neither the checkout nor its interpreter's settings may help.
    foreign = ("PYTHON", "PDP_", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | variables
    return subprocess.run(
        [installed / "pdp", *arguments], cwd=cwd, env=clean, capture_output=True, text=True, check=False, timeout=120
    )


def test_decides(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "proposal.json").write_text(json.dumps(payments.wire()))
    example = payments.EXAMPLE

    decided = run(
        installed, "decide", "proposal.json", "-m", example / "manifest.json", "-g", example / "governance.yaml",
        "-s", example / "session.json", "--json", cwd=tmp_path,
    )  # fmt: skip

    assert (decided.returncode, decided.stderr) == (3, "")
    answered = json.loads(decided.stdout)
    assert (answered["verdict"], [reason["code"] for reason in answered["reasons"]]) == ("STEP_UP", ["limits.exceeded"])
    assert answered["bundle_revision"].startswith("sha256:")


def test_tells_the_story(installed: Path, tmp_path: Path) -> None:
    told = run(installed, "demo", cwd=tmp_path)

    assert (told.returncode, told.stderr) == (0, "")
    assert "called once" in told.stdout


def test_what_needs_an_extra_says_which(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "db", "upgrade", "sqlite:///pdp.db", cwd=tmp_path)

    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "error: this needs the extra \"sql\": pip install 'tool-pdp[sql]'\n"


@pytest.fixture(scope="module")
def workbench(installed: Path) -> Path:
    """The same environment, with the extra that policy authors install."""
    [wheel] = installed.parents[1].glob("tool_pdp-*.whl")
    subprocess.run([installed / "python", "-m", "pip", "install", "--quiet", f"{wheel}[workbench]"], check=True)
    return installed


@pytest.mark.opa
def test_a_new_project_tests_itself(workbench: Path, tmp_path: Path, opa: Path) -> None:
    """Scenarios on both engines, the page, the conventions, and OPA's own tests with the Rego of the wheel."""
    with_opa = {"PDP_OPA": str(opa), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = run(workbench, "init", "desk", cwd=tmp_path)
    desk = tmp_path / "desk"

    tested = run(workbench, "test", ".", "--engine", "both", "--coverage", "--html", "page.html", cwd=desk, **with_opa)
    checked = run(workbench, "check", "--policies", "policies", "--scenarios", ".", cwd=desk, **with_opa)
    linted = run(workbench, "manifest", "lint", "manifest.yaml", "-g", "governance.yaml", "--strict", cwd=desk)
    where = run(workbench, "policies", "path", cwd=desk)

    answers = (made, tested, checked, linted, where)
    assert [(one.returncode, one.stderr) for one in answers] == [(0, "")] * len(answers)
    assert re.match(r"20 passed: 1 file, embedded, sidecar, \d+\.\d\d s\n", tested.stdout)
    assert checked.stdout == "1 file: no fault\n"
    page = (desk / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("a large refund is paid once the desk&#39;s lead has approved it") >= 2

    policies = Path(where.stdout.strip())
    assert policies.is_relative_to(workbench.parent)
    assert re.search(r"^PASS: \d+/\d+$", opa_tested(opa, policies / "authz", desk / "policies"), re.MULTILINE)


def opa_tested(opa: Path, *folders: Path) -> str:
    done = subprocess.run([opa, "test", *folders], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
