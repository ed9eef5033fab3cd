"""The conformance suite on every adapter whose framework is installed here, and what the page says of it.

`python -m tests.conformance NAME` writes an adapter's row.
"""

from pathlib import Path

import pytest

from pdp.testing.conformance.table import VERSIONS, row
from tests.adapters.targets import ADAPTERS, adapter_target, adapters_here, row_of
from tests.conformance.page import outcome, page_rows
from tests.support import ROOT


@pytest.mark.process
@pytest.mark.parametrize("adapter", adapters_here())
def test_what_an_adapter_does_is_what_the_page_says(adapter: str, tmp_path: Path) -> None:
    cells = outcome(adapter_target(adapter), tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    assert cells == {case: cell for case, cell in page_rows()[row_of(adapter)].items() if case != VERSIONS}


@pytest.mark.parametrize("adapter", adapters_here())
def test_the_page_says_with_which_versions(adapter: str) -> None:
    assert row(adapter_target(adapter), {}) == {VERSIONS: page_rows()[row_of(adapter)][VERSIONS]}


def test_the_page_has_a_row_for_each_adapter() -> None:
    modules = sorted(file.stem for file in (ROOT / "pdp/adapters").glob("*.py") if file.stem != "__init__")
    named = [name.partition("`pdp.adapters.")[2].removesuffix("`") for name in page_rows()]

    assert [name for name in named if name] == modules == sorted(ADAPTERS)
