"""The table of the documents, made from runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdp import __version__
from pdp.testing.conformance.cases import CASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.testing.conformance.target import Target


def table(runs: Sequence[tuple[Target, Mapping[str, str]]]) -> str:
    """Return what came of runs of all cases as Markdown: a column for each target; below, why a cell is not `pass`."""
    versions = ("<br>".join(f"{name} {number}" for name, number in target.versions.items()) for target, _ in runs)
    rows = [["", *(target.name for target, _ in runs)], ["---"] * (len(runs) + 1)]
    rows += [[f"tool-pdp {__version__}", *versions]]
    notes: dict[str, int] = {}
    for case in CASES:
        split = [cells[case].partition(": ") for _, cells in runs]
        rows += [[case, *(s + (why and f" [{notes.setdefault(why, len(notes) + 1)}]") for s, _, why in split)]]
    below = [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", *below, ""])
