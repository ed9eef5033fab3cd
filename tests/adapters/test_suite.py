"""The conformance suite on every adapter whose framework is installed here, and what the page says of it.

`python -m tests.conformance NAME` writes an adapter's row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pdp.testing.conformance.table import VERSIONS, row
from tests.adapters.targets import adapter_target, adapters_here, row_of
from tests.conformance.page import outcome, page_rows


@pytest.mark.process
@pytest.mark.parametrize("adapter", adapters_here())
def test_what_an_adapter_does_is_what_the_page_says(adapter: str, tmp_path: Path) -> None:
    cells = outcome(adapter_target(adapter), tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    stated = page_rows().get(row_of(adapter), cells)
    assert cells == {case: cell for case, cell in stated.items() if case != VERSIONS}


@pytest.mark.parametrize("adapter", adapters_here())
def test_the_page_says_with_which_versions(adapter: str) -> None:
    own = row(adapter_target(adapter), {})

    assert own == {VERSIONS: page_rows().get(row_of(adapter), own)[VERSIONS]}
