"""Runs the suite on targets, and reads and writes the results in the table of docs/enforcement-points.md."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdp.testing.conformance.run import run
from pdp.testing.conformance.table import table
from pdp.testing.conformance.target import Target
from tests.support import ROOT

PAGE: Final = ROOT / "docs/enforcement-points.md"
_TABLE: Final = re.compile(r"(?<=-->\n)(.*)(?=<!-- end of table -->)", re.DOTALL)


def outcome(target: Target, folder: Path) -> dict[str, str]:
    """Run the suite. Repeat failed cases once, because on a busy machine a request may time out.

    If a tool ran without permission, the case is not repeated.
    """
    cells = run(target, folder / "first")
    denied = [case for case, cell in cells.items() if cell.startswith("fail") and "UnsafeError" not in cell]
    return cells | run(target, folder / "second", denied)


def page_rows() -> dict[str, dict[str, str]]:
    match = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None
    return rows(match[1])


def write_page(written: Mapping[str, Mapping[str, str]]) -> None:
    text = table(written)
    PAGE.write_text(_TABLE.sub(lambda _: f"\n{text}\n", PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rows(text: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table by target. The number of a footnote is replaced by the text of the footnote."""
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {
        name: {
            column: re.sub(r" \[(\d+)\]$", lambda mark: f": {notes[mark[1]]}", cell)
            for column, cell in zip(lines[0][1:], cells, strict=True)
        }
        for name, *cells in lines[2:]
    }
