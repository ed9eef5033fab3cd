"""Every scenario file of the repository, on both engines."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from pdp.workbench.scenarios.files.suite import Suite, find_suites, load_suite
from pdp.workbench.scenarios.reports.text import failure_text
from pdp.workbench.scenarios.running.engines import ENGINES
from pdp.workbench.scenarios.running.runner import run_suite
from tests.support import ROOT

FILES = find_suites([ROOT / "examples", ROOT / "policies/scenarios"])


@cache
def suite(file: Path) -> Suite:
    return load_suite(file)


@pytest.mark.opa
@pytest.mark.parametrize("file", FILES, ids=[file.relative_to(ROOT).as_posix() for file in FILES])
def test_scenarios_pass_on_both_engines_and_the_engines_agree(opa: Path, file: Path) -> None:
    runs = list(run_suite(suite(file), ENGINES))

    failed = [failure_text(one, run.diagnoses.get(one.name)) for run in runs for one in run.results if not one.passed]
    assert "\n\n".join(failed) == ""
    assert [(run.engine, len(run.results)) for run in runs] == [
        (engine, len(suite(file).scenarios)) for engine in ENGINES
    ]
