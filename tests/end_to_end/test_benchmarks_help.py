"""The benchmarks say what they are for when they are asked, and measure nothing then."""

import subprocess
import sys

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment


@pytest.mark.process
@pytest.mark.parametrize("name", ["shadow", "swap", "service", "soak"])
@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--rounds", 2)])
def test_what_is_asked_of_a_benchmark_is_answered_before_it_runs(name: str, option: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", option],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment(), timeout=PATIENCE,
    )  # fmt: skip

    said = done.stdout if code == 0 else done.stderr
    assert (done.returncode, said.startswith("usage: "), done.stderr == "") == (code, True, code == 0)
