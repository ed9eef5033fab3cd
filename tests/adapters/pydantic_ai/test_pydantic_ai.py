"""Runs of Pydantic AI with scripted models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.cases import CASES
from tests.adapters.pydantic_ai.target import TARGET
from tests.conformance.page import outcome


@pytest.mark.process
def test_the_suite_passes(tmp_path: Path) -> None:
    cells = outcome(TARGET, tmp_path)

    why = TARGET.impossible["positional arguments"]
    assert {case: cell for case, cell in cells.items() if cell != "pass"} == {
        "positional arguments": f"impossible: {why}"
    }
    assert cells.keys() == CASES.keys()
