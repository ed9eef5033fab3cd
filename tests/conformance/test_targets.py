"""No case of the suite fails on any target, and docs/reference/enforcement-points.yaml contains the current results."""

from pathlib import Path

import pytest

from pdp.testing.conformance.table import row
from pdp.testing.conformance.target import Target
from tests.conformance.page import RESULTS, documented_rows, outcome, write_rows
from tests.conformance.targets import TARGETS


@pytest.mark.process
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_conformance_results_of_each_target_match_the_documentation(target: Target, tmp_path: Path) -> None:
    cells = outcome(target, tmp_path)

    assert {case: cell for case, cell in cells.items() if cell.startswith("fail")} == {}
    assert row(target, cells) == documented_rows().get(target.name)


def test_documentation_lists_exactly_the_known_targets() -> None:
    assert [name for name in documented_rows() if "pdp.adapters." not in name] == [target.name for target in TARGETS]


def test_rewriting_the_documented_results_does_not_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RESULTS.read_text(encoding="utf-8")
    copy = tmp_path / "results.yaml"
    copy.write_text(text, encoding="utf-8")
    monkeypatch.setattr("tests.conformance.page.RESULTS", copy)

    write_rows(documented_rows())

    assert copy.read_text(encoding="utf-8") == text
