"""The table of results for the documentation, with a row for each target."""

from collections.abc import Mapping

from pdp import __version__
from pdp.testing.conformance.cases import CASES
from pdp.testing.conformance.target import Target

VERSIONS = "versions"


def row(target: Target, cells: Mapping[str, str]) -> dict[str, str]:
    """Return the row of a target for `table`: its versions, then the result of each case.

    Args:
        target: the target that ran.
        cells: the results of all cases, as `run` returns them.

    Examples:
        >>> from types import SimpleNamespace
        >>> row(SimpleNamespace(versions={"my-client": "1.2"}), {"allow": "pass"})
        {'versions': 'my-client 1.2', 'allow': 'pass'}
    """
    return {VERSIONS: "<br>".join(f"{name} {number}" for name, number in target.versions.items()), **cells}


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return a Markdown table with a column for each case, and notes about results other than `pass`.

    Args:
        rows: the rows by the name of the target, as `row` returns them.

    Examples:
        >>> cells = dict.fromkeys(CASES, "pass") | {"versions": "my-client 1.2", "prune": "impossible: not supported"}
        >>> print(table({"Mine": cells}).splitlines()[-1])
        1. not supported
    """
    columns, notes = [VERSIONS, *CASES], dict[str, int]()
    lines = [[f"tool-pdp {__version__}", *columns], ["---"] * (len(columns) + 1)]
    for name, cells in rows.items():
        split = [cells[column].partition(": ") for column in columns]
        lines += [[name, *(s + (why and f" [{notes.setdefault(why, len(notes) + 1)}]") for s, _, why in split)]]
    below = [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *below, ""])
