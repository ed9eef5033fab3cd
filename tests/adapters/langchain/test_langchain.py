"""LangChain and LangGraph, tried with real agents whose model is scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from tests.adapters.langchain.target import TARGET


@pytest.mark.process
def test_the_suite_passes(tmp_path: Path) -> None:
    cells = run(TARGET, tmp_path / "first")
    late = [case for case, cell in cells.items() if cell.startswith("fail") and "UnsafeError" not in cell]
    cells |= run(TARGET, tmp_path / "second", late)

    assert {case: cell for case, cell in cells.items() if cell != "pass"} == {
        case: f"impossible: {why}" for case, why in TARGET.impossible.items()
    }
    assert cells.keys() == CASES.keys()
