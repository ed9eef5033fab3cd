"""The TypeScript types that openapi-typescript generates accept correct calls and reject mistakes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pdp.service.openapi import openapi_document
from tests.support import PATIENCE

pytestmark = pytest.mark.process

FILES = Path(__file__).with_name("typescript")
MISTAKES = (
    ('claims: { sub: "officer-123" }', 'claim: { sub: "officer-123" }'),
    ('format: "plain"', 'format: "plane"'),
    ('resource: { type: "wire_payment", id: "bene-acme-441" }', 'resource: { type: "wire_payment" }'),
    ('answer.verdict === "STEP_UP"', 'answer.verdict === "STEPUP"'),
    ("(each) => each.requesters", "(each) => each.requestors"),
    ("execution: { result:", "execution: { outcome:"),
)
NO_REGISTRY = re.compile(r"EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ENOTFOUND|ERR_SOCKET_TIMEOUT|ETIMEDOUT")


def test_typescript_types_accept_usual_calls_and_reject_mistakes(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = shutil.copytree(FILES, tmp_path / "typescript")
    (folder / "openapi.json").write_text(json.dumps(openapi_document()))
    calls = (folder / "calls.ts").read_text()
    expected = set()
    for number, (right, wrong) in enumerate(MISTAKES):
        before, found, after = calls.partition(right)
        assert found
        (folder / f"mistake{number}.ts").write_text(before + wrong + after)
        expected.add((f"mistake{number}.ts", 1 + before.count("\n")))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)

    installed = run(npm, "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--fetch-retries=0")
    if NO_REGISTRY.search(installed.stderr):
        pytest.skip("npm cannot reach its registry")
    assert installed.returncode == 0, installed.stderr
    # Without this option, a request would need all fields, even fields with a default.
    options = ("--output", "api.ts", "--default-non-nullable=false")
    made = run("node_modules/.bin/openapi-typescript", "openapi.json", *options)
    assert made.returncode == 0, made.stdout + made.stderr

    said = run("node_modules/.bin/tsc", "--project", ".").stdout
    assert {(file, int(line)) for file, line in re.findall(r"^(\S+)\((\d+),", said, re.MULTILINE)} == expected, said
