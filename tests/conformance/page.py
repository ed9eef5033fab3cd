"""Runs the suite on targets, and reads and writes the results in docs/reference/enforcement-points.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.run import run
from pdp.testing.conformance.table import VERSIONS
from pdp.testing.conformance.target import Target
from tests.support import ROOT

RESULTS: Final = ROOT / "docs/reference/enforcement-points.yaml"
_ROWS: Final = "\nrows:\n"


def outcome(target: Target, folder: Path) -> dict[str, str]:
    """Run the suite. Repeat failed cases once, because on a busy machine a request may time out.

    If a tool ran without permission, the case is not repeated.
    """
    cells = run(target, folder / "first")
    denied = [case for case, cell in cells.items() if cell.startswith("fail") and "UnsafeError" not in cell]
    return cells | run(target, folder / "second", denied)


def documented_rows() -> dict[str, dict[str, str]]:
    """Return the documented results by target. The file leaves out results that are `pass`."""
    passed = {VERSIONS: "", **dict.fromkeys(CASES, "pass")}
    rows = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))["rows"]
    return {name: {**passed, **cells} for name, cells in rows.items()}


def write_rows(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Replace the rows. Comments and notes above the rows are kept."""
    others = {
        name: {column: cell for column, cell in cells.items() if cell not in ("pass", "")}
        for name, cells in rows.items()
    }
    text = yaml.safe_dump({"rows": others}, sort_keys=False, allow_unicode=True, width=120)
    kept, _, _ = RESULTS.read_text(encoding="utf-8").partition(_ROWS)
    RESULTS.write_text(f"{kept}\n{text}", encoding="utf-8")
