"""No case of the suite fails on any target, and docs/enforcement-points.md contains the current results."""

from pathlib import Path

import pytest

from pdp.testing.conformance.table import row, table
from pdp.testing.conformance.target import Target
from tests.conformance.page import outcome, page_rows, rows
from tests.conformance.targets import TARGETS


@pytest.mark.process
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_conformance_results_of_each_target_match_the_documentation(target: Target, tmp_path: Path) -> None:
    cells = outcome(target, tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    assert row(target, cells) == page_rows().get(target.name)


def test_documentation_lists_exactly_the_known_targets() -> None:
    assert [name for name in page_rows() if "pdp.adapters." not in name] == [target.name for target in TARGETS]


def test_reading_and_rewriting_the_conformance_table_does_not_change_the_table() -> None:
    assert rows(table(page_rows())) == page_rows()
