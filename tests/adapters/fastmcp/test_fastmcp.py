"""The adapter of FastMCP, on servers and clients of FastMCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from tests.adapters.fastmcp.target import LEGACY, TARGET, FastMcpTarget


@pytest.mark.process
@pytest.mark.parametrize("target", [TARGET, LEGACY], ids=lambda target: target.name)
def test_the_suite_passes(target: FastMcpTarget, tmp_path: Path) -> None:
    cells = run(target, tmp_path / "first")
    late = [case for case, cell in cells.items() if cell.startswith("fail") and "UnsafeError" not in cell]
    cells |= run(target, tmp_path / "second", late)

    impossible = {case: f"impossible: {why}" for case, why in target.impossible.items()}
    assert {case: cell for case, cell in cells.items() if cell != "pass"} == impossible
    assert cells.keys() == CASES.keys()
