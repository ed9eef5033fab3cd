"""A run as one HTML page that needs nothing else: no network, no server, and no script but the page's own filter.

Names and values in the page come from scenarios, tools, models and bundles. The template escapes all of them, what
does not print is shown as escapes, and the page's own policy lets nothing run or load that is not ours.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from pdp.installed import extra
from pdp.workbench.scenarios.reports.text import summary_text
from pdp.workbench.scenarios.results import RunResult, StepResult
from pdp.workbench.shown_file import line_ranges, printable

_HERE: Final = Path(__file__).parent


def html_report(run: RunResult) -> str:
    """Return the page of a run: summary, every scenario, and coverage and matrix when they were measured."""
    with extra("workbench"):
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
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return environment.get_template("report.html.jinja").render(
        csp=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
        "base-uri 'none'; form-action 'none'",
        # Ours, and trusted: nothing of the run is in them.
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        summary=summary_text(run).split("\n")[0],
        run=run,
        groups=list(_groups(run)),
        files=_files(run),
        coverage=run.coverage,
        rows=_rows,
        at=lambda place: f"{place.file}:{place.line}",
        ranges=line_ranges,
    )


def _groups(run: RunResult) -> Iterator[dict[str, Any]]:
    """The cards as they stand on the page: those that failed, then those that passed, by file."""
    cards = run.cards
    if run.failed:
        yield {"id": "failures", "title": "Failed", "cards": [card for card in cards if not card.passed]}
    for number, file in enumerate(_files(run), 1):
        passed = [card for card in cards if card.passed and card.place.file == file]
        yield {"id": f"suite-{number}", "title": file, "cards": passed}


def _files(run: RunResult) -> list[str]:
    return list(dict.fromkeys(str(suite.suite.file) for suite in run.suites))


def _rows(step: StepResult) -> Iterator[tuple[str, Any, Any, bool]]:
    """Every key that is expected, both sides, and whether they differ; then what differs without being one of them."""
    several = isinstance(step.expected, list)
    differing = {mismatch.key: mismatch for mismatch in step.mismatches}
    for at, (expected, actual) in enumerate(step.sides):
        for key, value in expected.items():
            name = f"plan[{at}].{key}" if several else key
            yield name, value, actual[key], differing.pop(name, None) is not None
    for name, mismatch in differing.items():
        yield name, mismatch.expected, mismatch.actual, True


def _printable(value: Any) -> Any:
    """Show what does not print as escapes: it could turn the page's text around, or not be encoded at all."""
    ours = not isinstance(value, str) or hasattr(value, "__html__")
    return value if ours else "\n".join(map(printable, value.split("\n")))


def _source(text: str) -> str:
    """Return how a content security policy names an inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
