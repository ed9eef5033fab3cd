"""Report a run as JSON, and as JUnit XML for CI systems."""

import re
from dataclasses import asdict
from typing import Any, Final
from xml.etree import ElementTree as ET

from pdp.workbench.scenarios.reports.text import failure_text
from pdp.workbench.scenarios.results import RunResult, ScenarioResult, StepResult, SuiteResult


def run_as_json(run: RunResult) -> dict[str, Any]:
    """Return `{passed, failed, golden, coverage, suites}`, without times and ids, so equal runs give equal JSON.

    In a step, `expected` and `actual` have the same keys; for a plan they are lists. Below `details`, `messages`,
    `remedies` and `explanations`, `actual` lists the values of all reasons of a code. `diagnosis` of a failed scenario
    is `{stopped, unknown, fired, missed}`: why the enforcement point itself rejected or denied the call, why missed
    rules are unknown, the rules that fired, and each expected rule with the condition at which it stopped.
    """
    return {
        "passed": len(run.results) - run.failed,
        "failed": run.failed,
        "golden": asdict(run.golden),
        "coverage": run.coverage,
        "suites": [_suite(suite) for suite in run.suites],
    }


def _suite(run: SuiteResult) -> dict[str, Any]:
    return {
        "file": str(run.suite.file),
        "engine": run.engine,
        "manifest_version": run.suite.manifest.version,
        "manifest_digest": run.suite.manifest.digest,
        "bundle_revision": run.bundle_revision,
        "scenarios": [_scenario(result) for result in run.results],
    }


def _scenario(result: ScenarioResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "why": result.why,
        "golden": result.golden,
        "line": result.place.line,
        "passed": result.passed,
        "error": result.error,
        "steps": [_step(step) for step in result.steps],
        "diagnosis": None if result.diagnosis is None else asdict(result.diagnosis),
    }


def _step(step: StepResult) -> dict[str, Any]:
    return {
        "action": step.action,
        "line": step.place.line,
        "tool": step.tool,
        "expected": step.expected,
        "actual": step.actual,
        "mismatches": [asdict(mismatch) for mismatch in step.mismatches],
    }


# Characters that XML 1.0 must not contain, not even as a character reference.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(run: RunResult) -> str:
    """Return the JUnit XML of a run, with the location of each scenario and a text report of each failure."""
    root = ET.Element("testsuites", {"name": "pdp test", **_counts(run.results)})
    for suite in run.suites:
        about = {"name": f"{suite.suite.file} [{suite.engine}]", "time": f"{suite.seconds:.3f}"}
        cases = ET.SubElement(root, "testsuite", about | _counts(suite.results))
        for result in suite.results:
            _add_case(cases, result)
    ET.indent(root)
    text = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add_case(cases: ET.Element, result: ScenarioResult) -> None:
    file, line = result.place.file, str(result.place.line)
    names = {"classname": f"{file} [{result.engine}]", "name": result.name}
    case = ET.SubElement(cases, "testcase", names, file=file, line=line, time=f"{result.seconds:.3f}")
    if not result.passed:
        keys = [mismatch.key for step in result.steps for mismatch in step.mismatches]
        message = result.error or f"not as expected: {', '.join(keys)}"
        ET.SubElement(case, "failure", message=message).text = failure_text(result)


def _counts(results: tuple[ScenarioResult, ...]) -> dict[str, str]:
    failures = sum(not result.passed for result in results)
    return {"tests": str(len(results)), "failures": str(failures), "errors": "0", "skipped": "0"}
