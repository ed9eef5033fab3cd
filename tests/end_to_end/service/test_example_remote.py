"""In examples/remote, a wire is approved in a terminal and runs once, although the service is killed twice."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, written

EXAMPLE = ROOT / "examples/remote"


@pytest.mark.process
def test_remote_example_runs_as_its_readme_says(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = written(tmp_path / "pdp", f'#!/bin/sh\nexec "{sys.executable}" -m pdp "$@"\n')
    command.chmod(0o755)
    expected = re.search(r"It prints:\n\n((?:    .*\n)+)", (EXAMPLE / "README.md").read_text(encoding="utf-8"))
    assert expected is not None
    path = f"{tmp_path}:{os.environ['PATH']}"

    done = subprocess.run(
        ["sh", EXAMPLE / "run.sh"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=PATIENCE,
        env=environment(PATH=path, PORT=str(port), PYTHONPATH=str(ROOT), TMPDIR=str(tmp_path)),
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, re.sub(r"(?m)^    ", "", expected[1])), done.stderr
