"""A run as one HTML page that needs nothing else (pdp/workbench/reports/html_page.py), and no JavaScript to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.reports.html_page import render_page
from pdp.workbench.reports.shown_file import line_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdp.decision import Decision
    from pdp.errors import Place
    from pdp.workbench.scenarios.results import Diagnosis, RunResult, ScenarioResult, StepResult, SuiteResult

_HERE: Final = Path(__file__).parent
_NOT_STATED: Final = "(not stated)"


def render(run: RunResult, coverage: Mapping[str, Any] | None = None) -> str:
    """Return the page of a run: summary, every scenario, and coverage (`Coverage.as_json`) when it was measured."""
    return render_page(
        _HERE / "report.html.jinja",
        script=_HERE / "report.js",
        verdict=_verdict(run),
        suites=[_suite(each) for each in run.suites],
        golden=run.golden,
        coverage=coverage,
        ranges=line_ranges,
    )


def _verdict(run: RunResult) -> str:
    total = len(run.results)
    scenarios = f"{total} {'scenario' if total == 1 else 'scenarios'}"
    return f"{run.failed} of {scenarios} failed" if run.failed else f"{scenarios} passed"


def _suite(run: SuiteResult) -> dict[str, Any]:
    failed = sum(not result.passed for result in run.results)
    return {
        "file": str(run.suite.file),
        "engine": run.engine,
        "passed": len(run.results) - failed,
        "failed": failed,
        "seconds": f"{run.seconds:.2f}",
        "manifest_version": run.suite.manifest.version,
        "manifest_digest": run.suite.manifest.digest,
        "revision": run.bundle_revision,
        "scenarios": [_scenario(result, run.diagnoses.get(result.name)) for result in run.results],
    }


def _scenario(result: ScenarioResult, diagnosis: Diagnosis | None) -> dict[str, Any]:
    steps = [_step(step) for step in result.steps]
    return {
        "name": result.name,
        "why": result.why,
        "golden": result.golden,
        "passed": result.passed,
        "place": _at(result.place),
        "error": result.error,
        "log": result.log,
        "verdicts": ", ".join(decision["verdict"] for step in steps for decision in step["decisions"]),
        "steps": steps,
        "stopped": diagnosis.stopped if diagnosis else None,
        "fired": [
            {
                "part": each.part, "code": each.code, "message": each.message, "where": each.where,
                "details": _json(each.details) if each.details else "",
            }
            for each in ((*diagnosis.given, *diagnosis.fired) if diagnosis else ())
        ],
        "unknown": diagnosis.unknown if diagnosis else None,
        "missed": [
            {
                "code": each.code, "where": each.where, "condition": each.condition,
                "seen": _json(each.seen) if each.seen else "",
            }
            for each in (diagnosis.missed if diagnosis else ())
        ],
    }  # fmt: skip


def _step(step: StepResult) -> dict[str, Any]:
    return {
        "action": step.action,
        "tool": step.tool,
        "rows": list(_rows(step)),
        "decisions": [_decision(answer.decision) for answer in step.answers],
    }


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
            found = _json(actual[key]) if key in actual else _NOT_STATED
            differs = differing.pop(name, None) is not None
            yield {"key": name, "expected": _json(value), "actual": found, "differs": differs}
    for name, mismatch in differing.items():
        expected, found = _json(mismatch.expected), _json(mismatch.actual)
        yield {"key": name, "expected": expected, "actual": found, "differs": True}


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict.value,
        "reasons": [
            {"code": one.code, "message": one.message, "details": _json(one.details) if one.details else ""}
            for one in decision.reasons
        ],
        "obligations": [{"id": one.id, "parameters": _json(one.parameters)} for one in decision.obligations],
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _at(place: Place) -> str:
    return f"{place.file}:{place.line}"
