"""The requests of docs/service.md take a wire from its proposal to its start, as printed there."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment
from tests.support.service import running_service


@pytest.mark.process
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_requests_of_the_service_page_run_as_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs/service.md").read_text(encoding="utf-8")
    (requests,) = re.findall(r"^```sh[^\n]*\n(PDP=.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with running_service(tmp_path) as served:
        done = subprocess.run(
            ["sh", "-eu", "-c", requests.replace("http://127.0.0.1:8181", served.url)],
            cwd=tmp_path, env=environment(FIRST=served.token()), capture_output=True, check=False, timeout=PATIENCE,
        )  # fmt: skip

    answers, at = [], 0
    while at < len(done.stdout):
        answer, at = json.JSONDecoder().raw_decode(done.stdout.decode(), at)
        answers.append(answer)
    held, granted, begun = answers
    assert (done.returncode, done.stderr) == (0, b"")
    assert (held["verdict"], held["codes"], held["begun"]) == ("STEP_UP", ["limits.exceeded"], False)
    assert (granted["id"], granted["state"]) == (held["approval"]["id"], "granted")
    assert (begun["verdict"], begun["begun"], begun["arguments"]["amount"]) == ("ALLOW", True, 47500)
