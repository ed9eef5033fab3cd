"""A short soak test kills processes of the service at random, and checks that no call is lost or repeated."""

import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.command_line import environment


@pytest.mark.process
@pytest.mark.opa
def test_no_call_is_lost_or_repeated_when_processes_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.soak", "--seconds", "7"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment(), timeout=600,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert " executed\n" in done.stdout
    assert " killed " in done.stdout
