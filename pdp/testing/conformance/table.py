"""The table of the documents: a row for each target, made from its run."""

from collections.abc import Mapping

from pdp import __version__
from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.target import Target

VERSIONS = "versions"


def row(target: Target, cells: Mapping[str, str]) -> dict[str, str]:
    """Return what a run of all cases came to, as `table` takes it: the target's versions, then a cell for each case."""
    return {VERSIONS: "<br>".join(f"{name} {number}" for name, number in target.versions.items()), **cells}


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return rows by their names as Markdown: a column for each case; below, why a cell is not `pass`."""
    columns, notes = [VERSIONS, *CASES], dict[str, int]()
    lines = [[f"tool-pdp {__version__}", *columns], ["---"] * (len(columns) + 1)]
    for name, cells in rows.items():
        split = [cells[column].partition(": ") for column in columns]
        lines += [[name, *(s + (why and f" [{notes.setdefault(why, len(notes) + 1)}]") for s, _, why in split)]]
    below = [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *below, ""])
