"""A run as one HTML page that needs nothing else (pdp/workbench/reports/html_page.py), and no JavaScript to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.reports.html_page import render_page
from pdp.workbench.reports.shown_file import line_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.workbench.scenarios.results import RunResult, StepResult

_HERE: Final = Path(__file__).parent
_NOT_STATED: Final = "(not stated)"


def html_report(run: RunResult, coverage: Mapping[str, Any] | None = None) -> str:
    """Return the page of a run: summary, every scenario, and coverage and matrix when they were measured.

    `coverage` is plain JSON, as `Coverage.as_json` gives it.
    """
    return render_page(
        _HERE / "report.html.jinja",
        script=_HERE / "report.js",
        verdict=_verdict(run),
        run=run,
        coverage=coverage,
        rows=_rows,
        at=lambda place: f"{place.file}:{place.line}",
        ranges=line_ranges,
    )


def _verdict(run: RunResult) -> str:
    total = len(run.results)
    scenarios = f"{total} {'scenario' if total == 1 else 'scenarios'}"
    return f"{run.failed} of {scenarios} failed" if run.failed else f"{scenarios} passed"


def _rows(step: StepResult) -> Iterator[dict[str, Any]]:
    """Every key that is expected, and then what differs without being one of them."""
    several = isinstance(step.expected, list)
    pairs: Sequence[tuple[Any, Any]] = (
        list(zip(step.expected, step.actual, strict=True)) if several else [(step.expected, step.actual)]
    )
    differing = {mismatch.key: mismatch for mismatch in step.mismatches}
    for at, (expected, actual) in enumerate(pairs):
        for key, value in expected.items():
            name = f"plan[{at}].{key}" if several else key
            reached = _json(actual[key]) if key in actual else _NOT_STATED
            differs = differing.pop(name, None) is not None
            yield {"key": name, "expected": _json(value), "actual": reached, "differs": differs}
    for name, mismatch in differing.items():
        sides = {"expected": _json(mismatch.expected), "actual": _json(mismatch.actual)}
        yield {"key": name, **sides, "differs": True}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
