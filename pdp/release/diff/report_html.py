"""A bundle diff as one HTML page that needs nothing else, and runs no script.

Names and values in it come from bundles, logs and models: the template escapes all of them, and what does not print is
shown as escapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pdp.harness
from pdp.release.diff.wording import (
    grid_lines,
    known_line,
    rule_lines,
    structure_lines,
    uncovered,
    verdict,
    witness_line,
)

if TYPE_CHECKING:
    from pdp.release.diff.groups import Group
    from pdp.release.diff.result import BundleDiff

_HERE: Final = Path(__file__).parent
_STYLE: Final = Path(pdp.harness.__file__).parent / "report.css"


def render(diff: BundleDiff) -> str:
    """Return the page; it has every difference."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    style = _STYLE.read_text(encoding="utf-8")
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template("diff.html.jinja").render(
        csp=f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'",
        # Ours, and trusted: nothing of a bundle is in it.
        style=Markup(style),  # noqa: S704
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
        uncovered=uncovered(),
    )


def _group(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "title": group.title,
        "direction": group.direction.value,
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


def _printable(value: Any) -> Any:
    """Show what does not print as escapes: it could turn the page's text around, or not be encoded at all."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in value
    )
