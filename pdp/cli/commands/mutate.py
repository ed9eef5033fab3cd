"""`pdp mutate`: policies, manifests and data broken on purpose, and which scenario notices."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

from pdp.cli import INTERRUPTED, Exit
from pdp.cli.display import progress
from pdp.cli.files import needed, project_with
from pdp.cli.options import AsJson, EngineTimeout, ScenarioPaths, command_app
from pdp.cli.output import complain, print_answer
from pdp.errors import FileFaultsError, UsageError
from pdp.opa.program import find_opa
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.mutation.run import MutationRun, report_lines
from pdp.workbench.mutation.run import mutate as run_mutants
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

app = command_app()


@app.command("mutate")
def mutate(
    paths: ScenarioPaths = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Break the baseline's Rego as well as what the scenario files state.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only mutants that have this in their id or kind.")
    ] = None,
    without: Annotated[str | None, typer.Option(metavar="TEXT", help="No mutants that have this in their id.")] = None,
    max_survivors: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Fail when more than these survive unmarked.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Judge that many mutants alone, drawn by --seed.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Which mutants are drawn; printed, and random if absent.")
    ] = None,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Break policies, manifests and data in one place at a time, and show what no scenario notices.

    Exit code: 0, or 1 above --max-survivors, 2 bad usage or file or a late engine, 130 interrupted.
    """
    if seed is not None and sample is None:
        raise UsageError("--seed says nothing without --sample", hint="add --sample")
    files = find_suites(needed(project_with(scenarios=paths).scenarios, "scenarios", "PATH"))
    suites = load_suites(files, engine_timeout)
    marked = read_equivalents(beside(files))
    run = MutationRun()
    interrupted = False
    with progress(quiet=as_json) as bar:
        advance = partial(_advance, bar, bar.add_task("", total=None))
        try:
            run_mutants(
                suites,
                opa=find_opa(),
                baseline=baseline,
                only=only,
                without=without,
                marked=marked,
                run=run,
                sample=sample,
                seed=token_hex(4) if seed is None else seed,
                progress=advance,
            )
        except KeyboardInterrupt:
            # The results until now took their time, and may be all that the user needs.
            interrupted = True
    if not run.total and not interrupted:
        nothing = "there is nothing to break" if only is None else f"--only {only!r}: no mutant has that in its name"
        raise UsageError(nothing, hint="name scenario files with policies of their own, or add --baseline")
    _print(run, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if run.faults:
        raise FileFaultsError(run.faults)
    too_many = max_survivors is not None and run.count(Fate.SURVIVED) > max_survivors
    raise typer.Exit(Exit.FAILED if too_many else Exit.OK)


def _print(run: MutationRun, *, as_json: bool) -> None:
    summary = run.summary() if run.complete else f"interrupted; {run.summary()}"
    print_answer(run.as_json(), (*(line.expandtabs(4) for line in report_lines(run)), summary), as_json=as_json)
    for note in () if as_json else run.notes:
        complain(note)


def _advance(bar: Progress, task: TaskID, run: MutationRun) -> None:
    counts = f"{run.count(Fate.KILLED)} killed, {run.count(Fate.SURVIVED)} survived"
    if len(run.judgements) == run.total:
        counts += "; searching what would notice"
    bar.update(task, total=run.total, completed=len(run.judgements), description=counts)
