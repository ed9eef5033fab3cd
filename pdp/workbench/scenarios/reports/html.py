"""Report a run as one HTML page that needs no network or server. Its only script filters the scenarios.

Names and values come from scenarios, tools, models and bundles, so the template escapes all of them, including
unprintable characters. The page's content security policy blocks all other code and resources.
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
    """Return the HTML page of a run: the summary, every scenario and, if it was measured, the coverage."""
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
        # Both files belong to this package and contain no text of the run, so they need no escaping.
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
    cards = run.cards
    if run.failed:
        yield {"id": "failures", "title": "Failed", "cards": [card for card in cards if not card.passed]}
    for number, file in enumerate(_files(run), 1):
        passed = [card for card in cards if card.passed and card.place.file == file]
        yield {"id": f"suite-{number}", "title": file, "cards": passed}


def _files(run: RunResult) -> list[str]:
    return list(dict.fromkeys(str(suite.suite.file) for suite in run.suites))


def _rows(step: StepResult) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield a table row for each expected key: key, expected value, actual value, and whether the two values differ."""
    several = isinstance(step.expected, list)
    differing = {mismatch.key: mismatch for mismatch in step.mismatches}
    for at, (expected, actual) in enumerate(step.sides):
        for key, value in expected.items():
            name = f"plan[{at}].{key}" if several else key
            yield name, value, actual[key], differing.pop(name, None) is not None
    for name, mismatch in differing.items():
        yield name, mismatch.expected, mismatch.actual, True


def _printable(value: Any) -> Any:
    """Escape unprintable characters, which could reverse the direction of the page's text or break its encoding."""
    ours = not isinstance(value, str) or hasattr(value, "__html__")
    return value if ours else "\n".join(map(printable, value.split("\n")))


def _source(text: str) -> str:
    """Return the hash by which a content security policy permits an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
