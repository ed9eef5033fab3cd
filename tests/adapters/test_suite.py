"""Every adapter whose framework is installed passes the conformance suite with the documented results.

`python -m tests.conformance NAME` writes the results of the adapter NAME into the documentation.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdp.testing.conformance.table import VERSIONS, row
from tests.adapters.targets import ADAPTERS, adapter_target, adapters_here, row_of
from tests.conformance.page import documented_rows, outcome
from tests.support import ROOT


@pytest.mark.process
@pytest.mark.parametrize("adapter", adapters_here())
def test_adapter_has_the_documented_conformance_results(adapter: str, tmp_path: Path) -> None:
    cells = outcome(adapter_target(adapter), tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    assert cells == {case: cell for case, cell in documented_rows()[row_of(adapter)].items() if case != VERSIONS}


@pytest.mark.parametrize("adapter", adapters_here())
def test_documentation_lists_the_tested_framework_versions(adapter: str) -> None:
    assert row(adapter_target(adapter), {}) == {VERSIONS: documented_rows()[row_of(adapter)][VERSIONS]}


def test_documentation_has_a_row_for_each_adapter() -> None:
    modules = sorted(file.stem for file in (ROOT / "pdp/adapters").glob("*.py") if file.stem != "__init__")
    named = [name.partition("`pdp.adapters.")[2].removesuffix("`") for name in documented_rows()]

    assert [name for name in named if name] == modules == sorted(ADAPTERS)


def test_guide_lists_each_adapter_with_its_tested_version() -> None:
    guide = (ROOT / "docs/how-to/use-a-framework.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"\[`(\w+)`\](.*)", guide))
    versions = {
        name.partition("`pdp.adapters.")[2].removesuffix("`"): re.findall(r" (\d[\d.]*)", row[VERSIONS])
        for name, row in documented_rows().items()
        if "pdp.adapters." in name
    }

    assert [name for name, numbers in versions.items() if numbers[0] not in lines[name]] == []
    assert lines.keys() == versions.keys()


@pytest.mark.process
@pytest.mark.parametrize("adapter", adapters_here())
def test_example_of_the_adapter_prints_its_recorded_output(adapter: str) -> None:
    command = [sys.executable, f"examples/frameworks/{adapter}_payments.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, text=True)

    assert told.stdout == (ROOT / f"tests/adapters/{adapter}/story.txt").read_text()
