"""docs/enforcement-points.md: the table in it, written and read."""

from __future__ import annotations

import re
from typing import Final

from tests.support import ROOT

PAGE: Final = ROOT / "docs/enforcement-points.md"
_TABLE: Final = re.compile(r"(?<=-->\n)(.*)(?=<!-- end of table -->)", re.DOTALL)


def page_table() -> str:
    """The table in the page."""
    found = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def write_table(text: str) -> None:
    """Put a table into the page."""
    PAGE.write_text(_TABLE.sub(lambda _: f"\n{text}\n", PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def columns(text: str) -> dict[str, dict[str, str]]:
    """What a table says of each target: each row's cell, its note in place of the note's number."""
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found: dict[str, dict[str, str]] = {name: {} for name in rows[0][1:]}
    for row in rows[2:]:
        for name, cell in zip(found, row[1:], strict=True):
            found[name][row[0]] = re.sub(r" \[(\d+)\]$", lambda mark: f": {notes[mark[1]]}", cell)
    return found
