"""`pdp test`: scenarios, and what came of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdp.cli import Exit
from pdp.cli.output import print_json, tell, write_report
from pdp.cli.progress import drawn, is_drawn
from pdp.errors import UsageError
from pdp.workbench.scenarios.files.selection import selection
from pdp.workbench.scenarios.files.suite import find_suites, load_suites
from pdp.workbench.scenarios.reports.text import failure_text, summary_text
from pdp.workbench.scenarios.results import Run
from pdp.workbench.scenarios.running.runner import run_suite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pdp.workbench.coverage.coverage import Coverage
    from pdp.workbench.scenarios.files.suite import Suite
    from pdp.workbench.scenarios.results import ScenarioResult, SuiteRun


def test(
    paths: Sequence[Path],
    *,
    engine: str,
    opa_url: str | None,
    expression: str | None,
    junit: Path | None,
    html: Path | None,
    as_json: bool,
    coverage: bool,
    fail_under: float | None,
) -> int:
    """Run the scenarios of files and folders and return the exit code.

    Raises:
        UsageError: options that do not go together, or no scenario is selected.
        FileFaultsError: a scenario file is faulty; the faults of all of them.
        BundleError, EngineError: an engine cannot be had.
    """
    if opa_url is not None and engine == "embedded":
        raise UsageError("--opa-url is not for the embedded engine", hint="add --engine sidecar, or --engine both")
    if fail_under is not None and not coverage:
        raise UsageError("--fail-under says nothing without --coverage", hint="add --coverage")
    selected = None if expression is None else selection(expression)
    suites = load_suites(find_suites(paths))
    engines = ("embedded", "sidecar") if engine == "both" else (engine,)
    run = _run(suites, engines, selected, opa_url, quiet=as_json)
    if not run.results:
        count = sum(len(suite.scenarios) for suite in suites)
        raise UsageError(f"-k {expression!r}: none of {count} scenarios is selected", hint="use words of their names")
    reached = _measured(run) if coverage else None
    if as_json:
        from pdp.workbench.scenarios.reports.json import as_json as report  # noqa: PLC0415

        print_json(report(run, None if reached is None else reached.as_json()))
    else:
        _tell(run)
        if reached is not None:
            from pdp.cli.coverage import print_coverage  # noqa: PLC0415

            print_coverage(reached, [each.suite for each in run.suites], fail_under)
    # Last, so that a file which cannot be written takes nothing from what was found.
    _write_reports(run, reached, junit, html)
    short = reached is not None and fail_under is not None and bool(reached.complaints(fail_under))
    return Exit.FAILED if run.failed or short else Exit.OK


def _measured(run: Run) -> Coverage:
    from pdp.workbench.coverage.coverage import measure  # noqa: PLC0415
    from pdp.workbench.opa.program import find_opa  # noqa: PLC0415

    return measure([(each.suite, each.results) for each in run.suites], find_opa())


def _run(
    suites: Sequence[Suite],
    engines: Sequence[str],
    selected: Callable[[str], bool] | None,
    opa_url: str | None,
    *,
    quiet: bool,
) -> Run:
    total = len(engines) * sum(
        selected is None or selected(scenario.name) for suite in suites for scenario in suite.scenarios
    )
    done: list[SuiteRun] = []
    with _progress(total, quiet=quiet) as progress:
        for suite in suites:
            done += run_suite(suite, engines, selected=selected, opa_url=opa_url, progress=progress)
    return Run(tuple(done))


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[ScenarioResult], None] | None]:
    """A bar on a terminal, and nothing elsewhere. It is drawn on standard error, beside whatever is printed."""
    if not is_drawn(quiet=quiet):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"), TimeElapsedColumn())
    failed = 0
    with drawn(*columns) as bar:
        task = bar.add_task("", total=total, failed="")

        def advance(result: ScenarioResult) -> None:
            nonlocal failed
            failed += not result.passed
            bar.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield advance


def _write_reports(run: Run, coverage: Coverage | None, junit: Path | None, html: Path | None) -> None:
    if junit is not None:
        from pdp.workbench.scenarios.reports.junit import render  # noqa: PLC0415

        write_report(junit, render(run))
    if html is not None:
        from pdp.workbench.scenarios.reports.html import render as page  # noqa: PLC0415

        write_report(html, page(run, None if coverage is None else coverage.as_json()))


def _tell(run: Run) -> None:
    for each in run.suites:
        for result in each.results:
            if not result.passed:
                tell(failure_text(result, each.diagnoses.get(result.name)) + "\n")
    tell(summary_text(run))
