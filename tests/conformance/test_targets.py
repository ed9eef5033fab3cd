"""The suite on every way in; nothing fails, and docs/enforcement-points.md says what came of it."""

from pathlib import Path

import pytest

from pdp.testing.conformance.table import row, table
from pdp.testing.conformance.target import Target
from tests.conformance.page import outcome, page_rows, rows
from tests.conformance.targets import TARGETS


@pytest.mark.process
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_a_way_in_does_is_what_the_page_says(target: Target, tmp_path: Path) -> None:
    cells = outcome(target, tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    assert row(target, cells) == page_rows().get(target.name)


def test_the_page_has_these_ways_in_and_no_others() -> None:
    assert [name for name in page_rows() if "pdp.adapters." not in name] == [target.name for target in TARGETS]


def test_a_table_that_is_read_and_written_again_is_the_same() -> None:
    assert rows(table(page_rows())) == page_rows()
