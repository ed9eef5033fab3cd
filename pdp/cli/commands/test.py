"""`pdp test`: runs scenarios and reports the results."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn

import typer

from pdp.cli import Exit, shown_error
from pdp.cli.display import progress
from pdp.cli.files import project_with, required
from pdp.cli.findings import SCENARIO, reported
from pdp.cli.options import AsJson, EngineTimeout, Format, ScenarioPaths, command_app, file_option
from pdp.cli.output import print_error, print_json, print_line, write_text
from pdp.documents import written_value
from pdp.engine.protocol import EngineName
from pdp.errors import Fault, PdpError, UsageError
from pdp.opa.program import find_opa
from pdp.project.file import chosen_project
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

_WATCHED: Final = (".yaml", ".yml", ".json", ".rego", ".py")
_EVERY: Final = 1.0  # seconds between two looks at the files


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
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again after each change of a file, until you press Ctrl-C.")
    ] = False,
    form: Format = "text",
    as_json: AsJson = False,
) -> None:
    """Run scenarios and compare the decisions with the expected ones.

    Exit code: 0 all passed, 1 a scenario failed (or coverage is too low), 2 bad usage, a faulty file,
    or an engine timed out.
    """
    project_file = chosen_project()
    watched = {*(paths or ()), *([project_file] if project_file else ())}

    def once() -> Exit:
        with reported("text" if as_json else form) as found:
            project = project_with(scenarios=paths)
            engines = engines_named(engine or ("both" if find_opa() else project.engine))
            if fail_under is not None and not coverage:
                raise UsageError("--fail-under has no effect without --coverage", hint="add --coverage")
            selected = None if expression is None else selection(expression)
            watched.update((*project.scenarios, *project.policies, *project.data))
            suites = load_suites(find_suites(required(project.scenarios, "scenarios", "PATH")), engine_timeout)
            for suite in suites:
                watched.update((suite.file, *suite.policies, *chain.from_iterable(suite.files.values())))
            run = _run(suites, engines, selected, quiet=as_json or form == "sarif")
            if not run.results:
                count = sum(len(suite.scenarios) for suite in suites)
                message = f"-k {expression!r}: matches none of {count} scenarios"
                raise UsageError(message, hint="use part of a scenario name")
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
                elif form != "sarif":
                    _print(run, reached, fail_under)
            short = reached is not None and fail_under is not None and bool(reached.complaints(fail_under))
            found += [(SCENARIO, Fault(card.place, _why(card))) for card in run.cards if not card.passed]
            return Exit.FAILED if run.failed or short else Exit.OK

    if watch:
        run_after_changes(watched, once)
    raise typer.Exit(once())


def run_after_changes(watched: Iterable[Path], run: Callable[[], object]) -> NoReturn:
    """Call `run`, and again after each change of a watched file or folder. Faults are printed, and end nothing."""
    while True:
        before = _times(watched)
        try:
            run()
        except PdpError as error:
            print_error(shown_error(error))
        print_error("waiting for changes; Ctrl-C ends")
        # The run may have found more files to watch.
        before = {**_times(watched), **before}
        while _times(watched) == before:
            time.sleep(_EVERY)


def _times(watched: Iterable[Path]) -> dict[Path, int]:
    """Return the times of change of the watched files, and of all files beside them or in watched folders."""
    found: dict[Path, int] = {}
    for path in tuple(watched):
        top = path if path.is_dir() else path.parent
        for at, folders, names in os.walk(top):
            folders[:] = [name for name in folders if top == path and not name.startswith((".", "node_modules"))]
            for name in names:
                if name.endswith(_WATCHED):
                    with suppress(OSError):
                        file = Path(at, name)
                        found[file] = file.stat().st_mtime_ns
    return found


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


def _why(card: ScenarioResult) -> str:
    differing = card.steps[-1].mismatches if card.steps else ()
    values = ((each.key, written_value(each.expected), written_value(each.actual)) for each in differing)
    return f"{card.name}: {card.error or '; '.join(f'{key}: expected {old}, not {new}' for key, old, new in values)}"


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
