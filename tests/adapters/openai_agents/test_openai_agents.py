"""Runs of the OpenAI Agents SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from tests.adapters.openai_agents.target import TARGET


@pytest.mark.process
def test_the_suite_passes(tmp_path: Path) -> None:
    cells = run(TARGET, tmp_path)

    why = TARGET.impossible["positional arguments"]
    assert {case: cell for case, cell in cells.items() if cell != "pass"} == {
        "positional arguments": f"impossible: {why}"
    }
    assert cells.keys() == CASES.keys()
