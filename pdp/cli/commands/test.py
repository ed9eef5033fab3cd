"""`pdp test`: runs scenarios and reports the results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli import Exit
from pdp.cli.display import progress
from pdp.cli.files import project_with, required
from pdp.cli.options import AsJson, EngineTimeout, ScenarioPaths, command_app, file_option
from pdp.cli.output import print_json, print_line, write_text
from pdp.engine.protocol import EngineName
from pdp.errors import UsageError
from pdp.opa.program import find_opa
from pdp.workbench.coverage import Coverage, measure
from pdp.workbench.engines import ENGINE_TIMEOUT, engines_named
from pdp.workbench.scenarios.files.suite import Suite, find_suites, load_suites
from pdp.workbench.scenarios.reports.html import html_report
from pdp.workbench.scenarios.reports.json import junit_report, run_as_json
from pdp.workbench.scenarios.reports.text import failure_text, markdown_report, summary_text
from pdp.workbench.scenarios.results import RunResult, ScenarioResult, SuiteResult
from pdp.workbench.scenarios.running.runner import run_suite, selection
from pdp.workbench.shown_file import line_ranges, printable, shown_file

app = command_app()


@app.command("test")
def run_scenarios(
    paths: ScenarioPaths = None,
    engine: Annotated[
        Literal[EngineName, "both"] | None, typer.Option(help="The engine. Default: both if OPA is installed.")
    ] = None,
    expression: Annotated[
        str | None, typer.Option("-k", metavar="EXPR", help="A regular expression for names of scenarios.")
    ] = None,
    junit: Annotated[Path | None, file_option(help="Write a report in JUnit XML.")] = None,
    html: Annotated[Path | None, file_option(help="Write a report as an HTML page.")] = None,
    markdown: Annotated[Path | None, file_option(help="Write a report as Markdown, for a pull request.")] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show lines and codes that no scenario reaches.")
    ] = False,
    fail_under: Annotated[
        float | None,
        typer.Option(min=0, max=100, metavar="PERCENT", help="With --coverage: exit 1 if the coverage is lower."),
    ] = None,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Run scenarios and compare the decisions with the expected ones.

    Exit code: 0 all passed, 1 a scenario failed (or coverage is too low), 2 bad usage, a faulty file,
    or an engine timed out.
    """
    project = project_with(scenarios=paths)
    engines = engines_named(engine or ("both" if find_opa() else project.engine))
    if fail_under is not None and not coverage:
        raise UsageError("--fail-under has no effect without --coverage", hint="add --coverage")
    selected = None if expression is None else selection(expression)
    suites = load_suites(find_suites(required(project.scenarios, "scenarios", "PATH")), engine_timeout)
    run = _run(suites, engines, selected, quiet=as_json)
    if not run.results:
        count = sum(len(suite.scenarios) for suite in suites)
        raise UsageError(f"-k {expression!r}: matches none of {count} scenarios", hint="use part of a scenario name")
    reached = measure([(suite.suite, suite.results) for suite in run.suites], find_opa()) if coverage else None
    run = replace(run, coverage=None if reached is None else reached.as_json())
    try:
        # The reports are written first, because the reader of the output may close the pipe early.
        for file, report in ((junit, junit_report), (html, html_report), (markdown, markdown_report)):
            if file is not None:
                write_text(file, report(run))
    finally:
        if as_json:
            print_json(run_as_json(run))
        else:
            _print(run, reached, fail_under)
    short = reached is not None and fail_under is not None and bool(reached.complaints(fail_under))
    raise typer.Exit(Exit.FAILED if run.failed or short else Exit.OK)


def _run(
    suites: Sequence[Suite],
    engines: Sequence[EngineName],
    selected: Callable[[str], bool] | None,
    *,
    quiet: bool,
) -> RunResult:
    total = len(engines) * sum(
        selected is None or selected(scenario.name) for suite in suites for scenario in suite.scenarios
    )
    done: list[SuiteResult] = []
    failed = 0
    with progress(quiet=quiet) as bar:
        task = bar.add_task("", total=total)

        def advance(result: ScenarioResult) -> None:
            nonlocal failed
            failed += not result.passed
            bar.update(task, advance=1, description=f"{failed} failed" if failed else "")

        for suite in suites:
            done += run_suite(suite, engines, selected=selected, progress=advance)
    return RunResult(tuple(done))


def _print(run: RunResult, coverage: Coverage | None, fail_under: float | None) -> None:
    for card in run.cards:
        if not card.passed:
            print_line(failure_text(card) + "\n")
    print_line(summary_text(run))
    if coverage is not None:
        print_line("")
        for line in _lines(coverage):
            print_line(printable(line))
        complaints = coverage.complaints(fail_under)
        if complaints:
            print_line("\nmissing:")
        for complaint in complaints:
            print_line(f"  {printable(complaint)}")


def _lines(coverage: Coverage) -> Iterator[str]:
    percent = coverage.percent
    if coverage.lines is None or percent is None:
        yield "lines of Rego: not known without OPA; run: pdp opa install"
    elif not coverage.lines:
        yield "lines of Rego: no policies of your own; the baseline is tested separately"
    else:
        # The percentage is rounded down, so that incomplete coverage is never shown as 100.
        yield f"lines of Rego: {int(percent * 10) / 10:g} % covered"
        for file in coverage.lines:
            if file.missed:
                yield f"  {shown_file(file.file)}: not reached {line_ranges(file.missed)}"
    counted = [code for code in coverage.codes if code.file is not None]
    reached = sum(code.scenario is not None for code in counted)
    if counted:
        yield f"reason codes: {reached} of {len(counted)} reached"
    yield from (f"  {code.code}: exempt, {code.exempt}" for code in counted if code.exempt is not None)
    untried = [role for role in coverage.roles if role.scenario is None]
    if coverage.roles:
        tried = len(coverage.roles) - len(untried)
        yield f"arguments with a role: {tried} of {len(coverage.roles)} chosen by a stranger or the model"
    yield from (f"  {role.tool}: {role.argument} ({role.role}), in no scenario" for role in untried)
