"""`pdp mutate`: policies, manifests and data broken on purpose, and which scenario notices."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdp.cli import INTERRUPTED, Exit
from pdp.cli.output import complain, print_json, printable, tell
from pdp.cli.progress import drawn, is_drawn
from pdp.errors import FileFaultsError, UsageError
from pdp.workbench.mutation.equivalents import beside, read_equivalents
from pdp.workbench.mutation.mutant import Fate
from pdp.workbench.mutation.report import as_json as report
from pdp.workbench.mutation.report import lines, summary
from pdp.workbench.mutation.run import MutationRun
from pdp.workbench.mutation.run import mutate as run_mutants
from pdp.workbench.opa.program import find_opa
from pdp.workbench.scenarios.files.suite import find_suites, load_suites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def mutate(
    paths: Sequence[Path],
    *,
    baseline: bool,
    only: str | None,
    equivalent: Path | None,
    fail_under: float | None,
    as_json: bool,
) -> int:
    """Break what the scenario files of `paths` state, report what nobody notices, and return the exit code.

    Raises:
        UsageError: a scenario fails without any change; nothing to break; OPA cannot be run.
        FileFaultsError: a scenario file, or one that marks equivalents, is faulty.
        BundleError, EngineError: an engine cannot be had.
    """
    files = find_suites(paths)
    suites = load_suites(files)
    marked = read_equivalents([equivalent] if equivalent is not None else beside(files))
    run = MutationRun()
    interrupted = False
    with _progress(quiet=as_json) as progress:
        try:
            run_mutants(suites, opa=find_opa(), baseline=baseline, only=only, marked=marked, run=run, progress=progress)
        except KeyboardInterrupt:
            # What was found until now took its time, and may be all that one wanted to know.
            interrupted = True
    if not run.total and not interrupted:
        nothing = "there is nothing to break" if only is None else f"--only {only!r}: no mutant has that in its name"
        raise UsageError(nothing, hint="name scenario files with policies of their own, or add --baseline")
    _tell(run, as_json=as_json)
    if interrupted:
        return INTERRUPTED
    if run.faults:
        raise FileFaultsError(run.faults)
    return Exit.FAILED if fail_under is not None and (run.score or 0) < fail_under else Exit.OK


def _tell(run: MutationRun, *, as_json: bool) -> None:
    if as_json:
        print_json(report(run))
        return
    for survivor in run.of(Fate.SURVIVED):
        tell("\n".join(printable(line.expandtabs(4)) for line in lines(survivor)) + "\n")
    for note in run.notes:
        complain(note)
    tell(summary(run) if run.complete else f"interrupted; {summary(run)}")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[MutationRun], None] | None]:
    """A bar on a terminal, and nothing elsewhere. It is drawn on standard error, beside whatever is printed."""
    if not is_drawn(quiet=quiet):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}"), TimeElapsedColumn())
    with drawn(*columns) as bar:
        task = bar.add_task("", total=None, counts="")

        def advance(run: MutationRun) -> None:
            counts = f"{run.count(Fate.KILLED)} killed, {run.count(Fate.SURVIVED)} survived"
            if len(run.judgements) == run.total:
                counts += "; searching what would notice"
            bar.update(task, total=run.total, completed=len(run.judgements), counts=counts)

        yield advance
