"""A run as JSON; the form is stable, and documented in docs/scenarios.md."""

from dataclasses import asdict
from typing import Any

from pdp.workbench.scenarios.results import RunResult, ScenarioResult, StepResult, SuiteResult


def run_as_json(run: RunResult) -> dict[str, Any]:
    """Return `{passed, failed, golden, coverage, suites}`. The same run gives the same: no times and no ids."""
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
