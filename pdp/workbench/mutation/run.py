"""A whole run: mutants made of what suites state, each put to the test, and what came of it as far as it came."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING, Final

from pdp.workbench.mutation.equivalents import by_id, check_known
from pdp.workbench.mutation.mutant import Fate, RegoMutant
from pdp.workbench.mutation.plan import Plan
from pdp.workbench.mutation.recorded import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pdp.errors import Fault
    from pdp.workbench.mutation.equivalents import Marked
    from pdp.workbench.mutation.judgement import Judgement
    from pdp.workbench.mutation.mutant import Mutant
    from pdp.workbench.scenarios.files.suite import Suite

WORKERS: Final = 2
"""How many runs of OPA at a time: the rest of the work is Python's, which does one thing at a time."""

MOST_SEARCHED: Final = 60
"""For how many survivors a scenario is searched: where there are more, those will show what to do."""


@dataclass(slots=True)
class MutationRun:
    """What is known so far.

    Attributes:
        total: how many mutants there are to judge.
        judgements: by mutant, in the order in which they came.
        complete: whether every mutant was judged, and every survivor searched for.
        notes: what was left out, and why.
        faults: of entries that mark a mutant as equivalent that is none.
    """

    total: int = 0
    judgements: dict[str, Judgement] = field(default_factory=dict)
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def count(self, fate: Fate) -> int:
        """Return how many mutants came to this."""
        return sum(each.fate is fate for each in self.judgements.values())

    @property
    def score(self) -> float | None:
        """Killed of killed and survived, in percent; None when there are neither."""
        killed, survived = self.count(Fate.KILLED), self.count(Fate.SURVIVED)
        return 100 * killed / (killed + survived) if killed + survived else None

    def of(self, fate: Fate) -> list[Judgement]:
        """Return the judgements of one sort, in the order of their places."""
        found = [each for each in self.judgements.values() if each.fate is fate]
        return sorted(found, key=lambda each: (each.mutant.place.file, each.mutant.place.line, each.mutant.id))


def mutate(
    suites: Sequence[Suite],
    *,
    opa: Path | None,
    baseline: bool,
    only: str | None,
    marked: Sequence[Marked],
    run: MutationRun,
    progress: Callable[[MutationRun], None] | None = None,
) -> None:
    """Break what the suites state, run them, and put what comes of it into `run`, also when it is interrupted.

    Args:
        suites: whose scenarios have to notice.
        opa: the program, without which no Rego is broken.
        baseline: whether the baseline's Rego is broken as well as the suites' own.
        only: a text that a mutant's id or kind has to contain.
        marked: mutants that a person has marked as equivalent.
        run: where what is known is put.
        progress: told whenever something is.

    Raises:
        UsageError: a scenario fails without any change, or OPA cannot be run.
        FileFaultsError: an entry of `marked` names no mutant.
        BundleError, EngineError: an engine cannot be had.
    """
    with ExitStack() as stack:
        plan = Plan(record(suites), opa, stack)
        if opa is None:
            run.notes.append("Rego is not broken without Open Policy Agent: run pdp opa install")
        checkable = [each for each in marked if opa is not None or ".rego:" not in each.mutant]
        if elsewhere := check_known(checkable, plan.ids()):
            names = ", ".join(sorted({each.mutant.split(":", 1)[0] for each in elsewhere}))
            run.notes.append(f"marked as equivalent in files that these scenarios do not state: {names}")
        tasks = plan.tasks(lambda mutant: _wanted(mutant, baseline=baseline, only=only, own=plan.own))
        run.total = len({identity for identities, _ in tasks for identity in identities})
        equivalent = by_id(marked)

        def take(judged: Iterable[Judgement]) -> None:
            for each in judged:
                _take(run, each, equivalent)
            if progress is not None:
                progress(run)

        _work([work for _, work in tasks], take)
        searches = [plan.search(each) for each in run.of(Fate.SURVIVED)[:MOST_SEARCHED]]
        _work(searches, take)
        run.complete = True


def _take(run: MutationRun, found: Judgement, equivalent: Mapping[str, Marked]) -> None:
    """Add a judgement; of a change that several manifests have, the one that was noticed counts."""
    mutant = found.mutant
    known = run.judgements.get(mutant.id)
    if known is not None and known.fate is Fate.KILLED:
        return
    entry = equivalent.get(mutant.id)
    if entry is not None and found.fate is Fate.SURVIVED:
        if found.unnoticed:
            what = "a recorded request is" if found.unnoticed == 1 else f"{found.unnoticed} recorded requests are"
            run.faults.append(
                entry.fault(f"`{mutant.id}` is not equivalent: {what} decided differently", "expect what differs")
            )
        found = replace(found, fate=Fate.EQUIVALENT, by=entry.reason)
    elif entry is not None and found.fate in (Fate.KILLED, Fate.INVALID):
        what = f"killed by {found.by}" if found.fate is Fate.KILLED else f"no mutant: {found.by}"
        run.faults.append(entry.fault(f"`{mutant.id}` is not equivalent but {what}", "take this entry out"))
    run.judgements[mutant.id] = found


def _wanted(mutant: Mutant, *, baseline: bool, only: str | None, own: frozenset[str]) -> bool:
    if isinstance(mutant, RegoMutant) and not baseline and mutant.module not in own:
        return False
    return only is None or only in mutant.id or only in mutant.kind


def _done(task: Callable[[], Iterable[Judgement]], stopped: Event) -> list[Judgement]:
    """Do a task, as far as it comes before somebody stops it."""
    return list(takewhile(lambda _: not stopped.is_set(), task()))


def _work(tasks: Sequence[Callable[[], Iterable[Judgement]]], take: Callable[[Iterable[Judgement]], None]) -> None:
    """Do tasks, some at a time, and take what they come to in this thread; what is not begun is left on an error."""
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-mutate")
    stopped = Event()
    try:
        pending: set[Future[list[Judgement]]] = {pool.submit(_done, task, stopped) for task in tasks}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                take(future.result())
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
