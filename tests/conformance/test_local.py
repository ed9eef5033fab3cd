"""The suite on the enforcement point itself: the row that every other one is measured by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import Cell, run
from tests.conformance.local import LocalTarget

if TYPE_CHECKING:
    from pathlib import Path


def test_the_enforcement_point(tmp_path: Path) -> None:
    assert run(LocalTarget(), tmp_path) == {case.name: Cell("pass") for case in CASES}
