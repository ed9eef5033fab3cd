"""openapi-python-client generates a typed client from the OpenAPI document, and the client works."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pdp.service.openapi import openapi_document
from scripts.adapter_environments import environment
from tests.support import PATIENCE, ROOT
from tests.support.service import running_service

pytestmark = pytest.mark.process

STORY = Path(__file__).with_name("story.py")
# mypy reports the untyped arguments of `__exit__`, which the generator writes for any OpenAPI document.
MYPY = "[mypy]\nstrict = True\n[mypy-decisions.client]\ndisable_error_code = arg-type\n"


def test_generated_python_client_is_typed_and_works(tmp_path: Path) -> None:
    python = environment("clients", ROOT / "locks/clients.txt")
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_document()))
    (tmp_path / "mypy.ini").write_text(MYPY)

    environ = {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}

    def run(*words: str | Path) -> None:
        options: Any = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True, "timeout": PATIENCE}
        done = subprocess.run([python, *words], check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr

    made = ("--path", "openapi.json", "--output-path", "decisions", "--meta", "none")
    run("-m", "openapi_python_client", "generate", "--fail-on-warning", *made)
    run("-m", "mypy", "--config-file", "mypy.ini", "decisions", STORY)
    with running_service(tmp_path) as service:
        run(STORY, service.url, service.token(["admin"], {}))
