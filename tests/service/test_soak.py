"""The short form of the soak test: the service's parts are killed at random, and nothing is lost or doubled."""

import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.command_line import environment


@pytest.mark.process
@pytest.mark.opa
def test_nothing_is_lost_or_doubled_while_parts_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.soak", "--seconds", "10"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment(), timeout=600,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert " executed\n" in done.stdout
    assert " killed " in done.stdout
