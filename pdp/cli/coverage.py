"""Coverage by scenarios, on a terminal: lines, codes, verdicts, and what is missing as scenarios to fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pdp.cli.display import console
from pdp.cli.output import printable
from pdp.workbench.coverage.coverage import COLUMNS
from pdp.workbench.coverage.skeletons import skeletons
from pdp.workbench.reports.shown_file import line_ranges, shown_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.workbench.coverage.coverage import Coverage
    from pdp.workbench.scenarios.files.suite import Suite


def print_coverage(coverage: Coverage, suites: Sequence[Suite], fail_under: float | None) -> None:
    """Print what the scenarios of these suites reach, and what is asked for and not reached."""
    out = console()
    out.print()
    for line in _lines(coverage):
        out.print(Text(printable(line)))
    out.print()
    out.print(_matrix(coverage))
    complaints = coverage.complaints(fail_under)
    if complaints:
        out.print(Text("\nmissing:", "bold"))
        for complaint in complaints:
            out.print(Text(f"  {printable(complaint)}"))
    for file, text in skeletons(coverage, suites).items():
        out.print(Text(f"\nto fill in, below `scenarios:` of {printable(file)}:\n", "bold"))
        for line in text.splitlines():
            out.print(Text(printable(line)))


def _lines(coverage: Coverage) -> Iterator[str]:
    percent = coverage.percent
    if coverage.lines is None or percent is None:
        yield "lines of Rego: not known without OPA; run: pdp opa install"
    else:
        # Rounded down: what is not all covered must not look so.
        yield f"lines of Rego: {int(percent * 10) / 10:g} % covered"
        for file in coverage.lines:
            if file.missed:
                yield f"  {shown_file(file.file)}: not reached {line_ranges(file.missed)}"
    counted = [one for one in coverage.codes if one.counts]
    reached = sum(one.scenario is not None for one in counted)
    exempt = [one for one in counted if one.exempt is not None]
    yield f"reason codes: {reached} of {len(counted)} reached"
    for one in exempt:
        yield f"  {one.code}: exempt, {one.exempt}"


def _matrix(coverage: Coverage) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tool", no_wrap=True)
    table.add_column("manifest", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for one in coverage.matrix:
        counts = [str(one.counts[column] or "-") for column in COLUMNS]
        table.add_row(Text(printable(one.tool)), Text(printable(one.manifest_version)), *counts)
    return table
