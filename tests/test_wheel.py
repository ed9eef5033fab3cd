"""The built wheel, installed into an empty environment, has all that a decision needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import payments


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, payments.ROOT], check=True
    )
    [wheel] = folder.glob("tool_pdp-*.whl")
    venv.create(folder / "env", with_pip=True)
    scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run(
        [scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], check=True
    )
    return scripts


def run(installed: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Neither the checkout nor its interpreter's settings may help.
    foreign = ("PYTHON", "PDP_", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
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
