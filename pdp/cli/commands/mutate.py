"""`pdp mutate`: makes faulty variants of policies, manifests and data, and shows which variants no scenario detects."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

from pdp.cli import INTERRUPTED, Exit
from pdp.cli.display import progress
from pdp.cli.files import project_with, required
from pdp.cli.options import AsJson, EngineTimeout, ScenarioPaths, command_app
from pdp.cli.output import print_answer, print_error
from pdp.errors import FileFaultsError, UsageError
from pdp.opa.program import find_opa
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.mutation.report import report_lines
from pdp.workbench.mutation.run import MutationRun
from pdp.workbench.mutation.run import mutate as run_mutants
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

app = command_app()


@app.command("mutate")
def mutate(
    paths: ScenarioPaths = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also change the baseline's Rego, not only the files of the scenarios.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only mutants with this text in their id or kind.")
    ] = None,
    without: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Omit mutants with this text in their id.")
    ] = None,
    max_survivors: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Exit 1 if more than N unmarked mutants survive.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test only N mutants, drawn at random.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The seed of --sample. Default: a random seed, which is printed.")
    ] = None,
    engine_timeout: EngineTimeout = ENGINE_TIMEOUT,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every survivor with its change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change policies, manifests and data in one place at a time, and show the changes that no scenario detects.

    Exit code: 0 done, 1 more survivors than allowed, 2 bad usage or file, or an engine timed out, 130 interrupted.
    """
    if seed is not None and sample is None:
        raise UsageError("--seed has no effect without --sample", hint="add --sample")
    files = find_suites(required(project_with(scenarios=paths).scenarios, "scenarios", "PATH"))
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
            # After an interrupt, the results so far are still printed, because they took time and may be sufficient.
            interrupted = True
    if not run.total and not interrupted:
        nothing = "no file of these scenarios can be mutated" if only is None else f"--only {only!r}: no mutant matches"
        raise UsageError(nothing, hint="give scenario files with your own policies, or add --baseline")
    _print(run, verbose=verbose, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if run.faults:
        raise FileFaultsError(run.faults)
    too_many = max_survivors is not None and run.count(Fate.SURVIVED) > max_survivors
    raise typer.Exit(Exit.FAILED if too_many else Exit.OK)


def _print(run: MutationRun, *, verbose: bool, as_json: bool) -> None:
    summary = run.summary() if run.complete else f"interrupted; {run.summary()}"
    lines = (line.expandtabs(4).rstrip() for line in report_lines(run, verbose=verbose))
    print_answer(run.as_json(), (*lines, summary), as_json=as_json)
    for note in () if as_json else run.notes:
        print_error(note)


def _advance(bar: Progress, task: TaskID, run: MutationRun) -> None:
    counts = f"{run.count(Fate.KILLED)} killed, {run.count(Fate.SURVIVED)} survived"
    if len(run.judgements) == run.total:
        counts += "; searching for cases that detect the survivors"
    bar.update(task, total=run.total, completed=len(run.judgements), description=counts)
