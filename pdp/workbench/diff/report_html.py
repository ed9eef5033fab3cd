"""A bundle diff as one HTML page that needs nothing else (pdp/workbench/reports/html_page.py), and runs no script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.wording import (
    grid_lines,
    known_line,
    marked,
    rule_lines,
    structure_lines,
    uncovered,
    verdict,
    witness_line,
)
from pdp.workbench.reports.html_page import render_page

if TYPE_CHECKING:
    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.result import BundleDiff

_TEMPLATE: Final = Path(__file__).parent / "diff.html.jinja"


def render(diff: BundleDiff) -> str:
    """Return the page; it has every difference."""
    return render_page(
        _TEMPLATE,
        verdict=verdict(diff),
        bundles=[
            {"side": side, "file": name, "release": bundle.release, "revision": bundle.revision}
            for side, name, bundle in zip(("old", "new"), diff.names, (diff.old, diff.new), strict=True)
        ],
        structure=list(structure_lines(diff.structure)),
        known=known_line(diff),
        known_groups=[_group(group) for group in diff.known.groups],
        grid=grid_lines(diff),
        grid_groups=[_group(group) for group in diff.grid],
        uncovered=uncovered(diff),
    )


def _group(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "title": group.title,
        "open": group.may_loosen,
        "marked": marked(group),
        "count": group.count,
        "witness": witness_line(group),
        "rules": rule_lines(group),
        "sources": group.sources,
        "request": json.dumps(group.witness, indent=2, ensure_ascii=False),
        "decisions": [
            {"side": "old", "verdict": group.old.verdict.value, "codes": ", ".join(group.old.codes)},
            {"side": "new", "verdict": group.new.verdict.value, "codes": ", ".join(group.new.codes)},
        ],
    }
