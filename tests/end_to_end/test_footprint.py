"""An embedded enforcement point loads few modules, and one call runs through few files.

The limits are a budget (docs/explanation/architecture.md). A change that would exceed a limit must remove other code,
or raise the limit here and give a reason.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import PATIENCE, ROOT
from tests.support.command_line import environment, written

pytestmark = pytest.mark.process

MODULES = 60
LINES = 10_060  # Docstrings took over the public modules and the rules of tools from pages, and errors have more hints.
FILES_OF_A_CALL = 25

EXTRAS = (
    "aiohttp", "alembic", "cel", "cryptography", "httpx", "jinja2", "joserfc", "opa_client", "opentelemetry", "psycopg",
    "sqlalchemy",
)  # fmt: skip
"""Packages that only optional features (extras) need."""

SURFACES = ("pdp.cli", "pdp.workbench", "rich", "typer")
"""Packages that only the command line, policy authors and CI need."""

MANIFEST = {
    "manifest_version": "2026.01.1",
    "tools": [
        {
            "name": "read_note", "version": "1.0.0", "description": "Read a note.",
            "effect_class": "read-internal", "risk_tier": "low",
            "scopes": ["notes.read"],
            "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
        }
    ],
}  # fmt: skip

PROGRAM = """
import json, sys
from pathlib import Path
import pdp
from pdp import Pep

pep = Pep.from_files(sys.argv[1], tools={"read_note": lambda id: {"note": id}})
loaded = sorted(sys.modules)
session = {"claims": {"sub": "ann", "emts": {"notes.read": True}}}
proposal = {"tool": "read_note", "arguments": {"id": "n-1"}}
assert pep.call(proposal, session).executed
root, files = str(Path(pdp.__file__).parent), set()
sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
evaluation = pep.call(proposal, session)
sys.setprofile(None)
assert evaluation.executed
lines = {name: len(Path(sys.modules[name].__file__).read_text().splitlines())
         for name in loaded if name.split(".")[0] == "pdp"}
print(json.dumps({"loaded": loaded, "lines": lines, "files": sorted(file for file in files if file.startswith(root))}))
"""


@pytest.fixture(scope="module")
def footprint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("footprint")
    manifest = written(folder / "manifest.json", MANIFEST)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, manifest],
        capture_output=True, text=True, check=False, cwd=folder, env=environment(PYTHONPATH=str(ROOT)),
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def test_embedded_enforcement_point_loads_at_most_the_expected_number_of_modules(footprint: dict[str, Any]) -> None:
    lines = footprint["lines"]

    assert (len(lines) <= MODULES, sum(lines.values()) <= LINES) == (True, True), (len(lines), sum(lines.values()))


def test_embedded_enforcement_point_loads_no_optional_packages_and_no_command_line(footprint: dict[str, Any]) -> None:
    unwanted = (*EXTRAS, *SURFACES)

    assert [name for name in footprint["loaded"] if name in unwanted or name.startswith(("pdp.cli.", "pdp.work"))] == []


def test_one_call_executes_code_of_at_most_the_expected_number_of_files(footprint: dict[str, Any]) -> None:
    assert len(footprint["files"]) <= FILES_OF_A_CALL, footprint["files"]
