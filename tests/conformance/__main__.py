"""Run the suite on all targets and write the table into docs/enforcement-points.md: python -m tests.conformance."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pdp.testing.conformance.table import table
from tests.conformance.page import write_table
from tests.conformance.targets import TARGETS, outcome

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        runs = [(target, outcome(target, Path(folder) / str(number))) for number, target in enumerate(TARGETS)]
    write_table(table(runs))
    failed = [
        f"{target.name}: {case}: {cell}" for target, cells in runs for case, cell in cells.items() if "fail" in cell
    ]
    sys.exit("\n".join(failed) or None)
