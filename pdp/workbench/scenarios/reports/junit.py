"""A run as JUnit's XML, which CI systems show: a test suite for each file and engine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from pdp.workbench.scenarios.reports.text import failure_text

if TYPE_CHECKING:
    from pdp.workbench.scenarios.results import RunResult, ScenarioResult, SuiteResult

# What XML 1.0 cannot hold, not even as a reference.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(run: RunResult) -> str:
    """Return the XML of a run, with file and line of each scenario and the text report of those that failed."""
    root = ET.Element(
        "testsuites", {"name": "pdp test", "tests": str(len(run.results)), "failures": _failures(run.results)}
    )
    for suite in run.suites:
        root.append(_suite(suite))
    ET.indent(root)
    text = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(run: SuiteResult) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        {
            "name": f"{run.suite.file} [{run.engine}]",
            "tests": str(len(run.results)),
            "failures": _failures(run.results),
            "errors": "0",
            "skipped": "0",
            "time": f"{run.seconds:.3f}",
        },
    )
    for result in run.results:
        suite.append(_case(result))
    return suite


def _case(result: ScenarioResult) -> ET.Element:
    case = ET.Element(
        "testcase",
        {
            "classname": f"{result.place.file} [{result.engine}]",
            "name": result.name,
            "file": result.place.file,
            "line": str(result.place.line),
        },
    )
    if not result.passed:
        keys = [mismatch.key for step in result.steps for mismatch in step.mismatches]
        message = result.error or f"not as expected: {', '.join(keys)}"
        failure = ET.SubElement(case, "failure", {"message": message})
        failure.text = failure_text(result)
    return case


def _failures(results: tuple[ScenarioResult, ...]) -> str:
    return str(sum(not result.passed for result in results))
