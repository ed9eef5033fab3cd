"""The built wheel works in a new environment without the repository."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT, payments


def installed(folder: Path) -> Path:
    """Create an environment with only the wheel and its dependencies, and return its `bin` folder."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    venv.create(folder / "env")
    install(folder, "")
    return folder / "env/bin"


def install(folder: Path, extras: str) -> None:
    """Install the wheel in `folder` into the environment `folder/env`, with extras such as `[sql]`."""
    [wheel] = folder.glob("tool_pdp-*.whl")
    python = str(folder / "env/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", f"{wheel}{extras}"], check=True)


def run(programs: Path, *arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # Remove variables that could make the program use the repository or the developer's Python settings.
    foreign = ("PYTHON", "PDP_", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | variables
    return subprocess.run(
        [programs / "pdp", *arguments],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.opa
@pytest.mark.process
def test_installed_wheel_decides_and_tests_a_project(tmp_path: Path, opa: Path) -> None:
    """Creating an environment takes long, so all checks use the same environment."""
    programs = installed(tmp_path)
    decides(programs, tmp_path)
    story = run(programs, "demo", cwd=tmp_path)
    assert (story.returncode, story.stderr) == (0, "")
    assert "called once" in story.stdout
    without_extra = run(programs, "db", "upgrade", "sqlite:///pdp.db", cwd=tmp_path)
    assert (without_extra.returncode, without_extra.stdout) == (2, "")
    assert without_extra.stderr == "error: this needs the extra \"sql\": pip install 'tool-pdp[sql]'\n"
    helped = run(programs, "--help", cwd=tmp_path)
    assert (helped.returncode, helped.stderr, "  bundle " in helped.stdout) == (0, "", True)
    builds_and_compares_bundles(programs, tmp_path, opa)
    install(tmp_path, "[workbench]")
    a_new_project_tests_itself(programs, tmp_path, opa)


def decides(programs: Path, folder: Path) -> None:
    (folder / "proposal.json").write_text(json.dumps(payments.wire()))
    example = payments.EXAMPLE

    decided = run(
        programs, "decide", "proposal.json", "-m", example / "manifest.json", "-g", example / "governance.yaml",
        "-s", example / "session.json", "--json", cwd=folder,
    )  # fmt: skip

    assert (decided.returncode, decided.stderr) == (3, "")
    answer = json.loads(decided.stdout)
    assert (answer["verdict"], [reason["code"] for reason in answer["reasons"]]) == ("STEP_UP", ["limits.exceeded"])
    assert answer["bundle_revision"].startswith("sha256:")


def builds_and_compares_bundles(programs: Path, folder: Path, opa: Path) -> None:
    """Build unsigned bundles and compare them. Without signatures, no extra of the package is needed."""
    policies = payments.EXAMPLE / "policies"
    words = ("--release", "99", "--policies", policies, "-o", "new.tar.gz")
    built = run(programs, "bundle", "build", *words, cwd=folder, PDP_OPA=str(opa))
    assert (built.returncode, built.stderr) == (0, "")
    names = (ROOT / "bundles/baseline.tar.gz", "new.tar.gz", "--generate", "10")
    compared = run(programs, "bundle", "diff", *names, cwd=folder, PDP_OPA=str(opa))
    assert (compared.returncode, compared.stderr, "sanctions" in compared.stdout) == (0, "", True)
    keys = run(programs, "bundle", "keygen", "-o", "key.pem", cwd=folder)
    assert (keys.returncode, keys.stderr) == (
        2,
        "error: this needs the extra \"follow\": pip install 'tool-pdp[follow]'\n",
    )


def a_new_project_tests_itself(programs: Path, folder: Path, opa: Path) -> None:
    """Create a project and run its scenarios, page, conventions and unit tests with the files of the wheel."""
    with_opa = {"PDP_OPA": str(opa), "XDG_CACHE_HOME": str(folder / "cache")}
    made = run(programs, "init", "desk", cwd=folder)
    desk = folder / "desk"

    tested = run(programs, "test", "--engine", "both", "--coverage", "--html", "page.html", cwd=desk, **with_opa)
    checked = run(programs, "check", cwd=desk, **with_opa)
    linted = run(programs, "manifest", "lint", "--strict", cwd=desk)
    where = run(programs, "opa", "policies", cwd=desk)

    answers = (made, where, tested, checked, linted)
    project = f"project: {desk}/pdp.yaml\n"
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(0, "")] * 2 + [(0, project)] * 3
    assert re.match(r"32 passed: 2 files, embedded, sidecar, \d+\.\d\d s\n", tested.stdout)
    assert checked.stdout == "1 file: no fault\n"
    page = (desk / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "a large refund is paid once the desk&#39;s lead has approved it" in page

    policies = Path(where.stdout.strip())
    assert policies.is_relative_to(programs.parent)
    assert re.search(r"^PASS: \d+/\d+$", opa_tested(opa, policies / "authz", desk / "policies"), re.MULTILINE)


def opa_tested(opa: Path, *folders: Path) -> str:
    done = subprocess.run(
        [opa, "test", "--timeout", "60s", "--run", "data.custom", *folders],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
