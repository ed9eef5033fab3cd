"""`pdp bundle diff`: what a new bundle changes, in structure and in decisions."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdp.cli import Exit
from pdp.cli.display import progress
from pdp.cli.files import project_with
from pdp.cli.options import AsJson, EngineTimeout, Scenarios, file_argument, file_option
from pdp.cli.output import print_answer, tell
from pdp.errors import UsageError
from pdp.workbench.diff import reports
from pdp.workbench.diff.bundle_diff import bundle_diff
from pdp.workbench.diff.known import read_log
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.scenarios.files.suite import find_suites, load_suites


def diff(
    old: Annotated[Path, file_argument("OLD", help="The bundle as it was.")],
    new: Annotated[Path, file_argument("NEW", help="The bundle as it is.")],
    scenarios: Scenarios = None,
    log: Annotated[
        list[Path] | None, file_option(help="Recorded requests to decide by both, JSON lines. May be repeated.")
    ] = None,
    generate: Annotated[
        int, typer.Option(min=0, max=1_000_000, metavar="NUMBER", help="How many calls to generate at most; 0: none.")
    ] = 50_000,
    fail_on: Annotated[
        Literal["loosening", "any"] | None, typer.Option(help="Exit 1 when something admits more, or differs at all.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show what a new bundle changes: in structure, on known calls, and on calls that nobody wrote down.

    Exit code: 0, or 1 when --fail-on applies, 2 bad usage or file, or a late engine.
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other", hint="name one of them")
    suites = load_suites(find_suites(scenarios or project_with().scenarios), engine_timeout)
    logs = [read_log(file) for file in log or []]
    with progress(quiet=as_json or as_markdown) as bar:
        advance = partial(bar.advance, bar.add_task("calls decided", total=None))
        difference = bundle_diff(
            old, new, suites=suites, logs=logs, most=generate, progress=advance, engine_timeout=engine_timeout
        )
    if fail_on is not None and not difference.decided:
        raise UsageError(
            f"--fail-on {fail_on} says nothing: no call was decided by the two bundles",
            hint="name scenarios or a log that hold calls (--scenarios, --log), or let calls be generated (--generate)",
        )
    if as_markdown:
        tell(reports.markdown(difference).rstrip("\n"))
    else:
        print_answer(difference.as_json(), reports.text_lines(difference), as_json=as_json)
    raise typer.Exit(Exit.FAILED if difference.fails(fail_on) else Exit.OK)
