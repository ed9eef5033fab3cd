"""A whole run: mutants of what suites state, each put to the test, and a scenario searched for each survivor."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING, Final

from pdp.engine.data import merged_data
from pdp.json import canonical
from pdp.workbench.mutation.data_edits import data_mutants
from pdp.workbench.mutation.equivalents import by_id, check_known
from pdp.workbench.mutation.manifest_edits import StatedFiles, manifest_mutants, stated
from pdp.workbench.mutation.mutant import Fate, RegoMutant
from pdp.workbench.mutation.rego_edits import rego_mutants
from pdp.workbench.mutation.search import propose_for_data, propose_for_manifest, propose_for_rego
from pdp.workbench.mutation.trial import DataTrial, ManifestTrial, RegoTrial, record
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.errors import Fault
    from pdp.workbench.mutation.equivalents import Marked
    from pdp.workbench.mutation.mutant import DataMutant, Judgement, ManifestMutant, Mutant
    from pdp.workbench.mutation.proposal import Proposal
    from pdp.workbench.mutation.trial import Recorded
    from pdp.workbench.scenarios.files.suite import Suite

WORKERS: Final = 2
"""How many runs of OPA at a time: the rest of the work is Python's, which does one thing at a time."""

MOST_SEARCHED: Final = 60
"""For how many survivors a scenario is searched: where there are more, those will show what to do."""

_AT_ONCE: Final = 64


@dataclass(slots=True)
class MutationRun:
    """What is known so far.

    Attributes:
        total: how many mutants there are to judge.
        judgements: by mutant, in the order in which they came.
        complete: whether every mutant was judged, and every survivor searched for.
        notes: what was left out, and why.
        faults: of entries that mark a mutant as equivalent which is not.
    """

    total: int = 0
    judgements: dict[str, Judgement] = field(default_factory=dict)
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def count(self, fate: Fate) -> int:
        """Return how many mutants have this fate."""
        return sum(each.fate is fate for each in self.judgements.values())

    @property
    def score(self) -> float | None:
        """Killed of killed and survived, in percent; None when there are neither."""
        killed, survived = self.count(Fate.KILLED), self.count(Fate.SURVIVED)
        return 100 * killed / (killed + survived) if killed + survived else None

    def of(self, fate: Fate) -> list[Judgement]:
        """Return the judgements of one fate, in the order of their places."""
        judgements = [each for each in self.judgements.values() if each.fate is fate]
        return sorted(judgements, key=lambda each: (each.mutant.place.file, each.mutant.place.line, each.mutant.id))

    def add(self, judgement: Judgement, equivalent: Mapping[str, Marked]) -> None:
        """Add a judgement; of a change that several manifests have, the one that was noticed counts."""
        mutant, fate = judgement.mutant, judgement.fate
        known = self.judgements.get(mutant.id)
        if known is not None and known.fate is Fate.KILLED:
            return
        entry = equivalent.get(mutant.id)
        if entry is not None and fate is Fate.SURVIVED:
            if count := judgement.unnoticed:
                what = "a recorded request is" if count == 1 else f"{count} recorded requests are"
                self.faults.append(
                    entry.fault(f"`{mutant.id}` is not equivalent: {what} decided differently", "expect what differs")
                )
            judgement = replace(judgement, fate=Fate.EQUIVALENT, by=entry.reason)
        elif entry is not None and fate in (Fate.KILLED, Fate.INVALID):
            what = f"killed by {judgement.by}" if fate is Fate.KILLED else f"no mutant: {judgement.by}"
            self.faults.append(entry.fault(f"`{mutant.id}` is not equivalent but {what}", "take this entry out"))
        self.judgements[mutant.id] = judgement


@dataclass(frozen=True, slots=True)
class _Task:
    """Mutants of one kind, what judges them, and what searches for a scenario that would notice one of them."""

    mutants: Sequence[Mutant]
    judge: Callable[[], Iterable[Judgement]]
    propose: Callable[[Mutant], Proposal]


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
    """Break what the suites state, run them, and put the results into `run`, also when it is interrupted.

    Args:
        suites: whose scenarios have to notice.
        opa: the program, without which no Rego is broken.
        baseline: whether the baseline's Rego is broken as well as the suites' own.
        only: a text that a mutant's id or kind has to contain.
        marked: mutants that a person has marked as equivalent.
        run: where what is known is put.
        progress: called whenever more is known.

    Raises:
        UsageError: a scenario fails without any change, or OPA cannot be run.
        FileFaultsError: an entry of `marked` names no mutant.
        BundleError, EngineError: an engine cannot be opened.
    """
    recorded, ids = record(suites), set[str]()
    own = {path for suite in suites for path, module in policy_modules(suite).items() if module.custom}

    def wanted(mutant: Mutant) -> bool:
        ids.add(mutant.id)
        if isinstance(mutant, RegoMutant) and not baseline and mutant.module not in own:
            return False
        return only is None or only in mutant.id or only in mutant.kind

    with ExitStack() as stack:
        by_opa = [] if opa is None else list(_rego_tasks(recorded, opa, stack, wanted))
        in_process = [*_manifest_tasks(recorded, opa, wanted), *_data_tasks(recorded, opa, wanted)]
        if opa is None:
            run.notes.append("Rego is not broken without Open Policy Agent: run pdp opa install")
        checkable = [each for each in marked if opa is not None or ".rego:" not in each.mutant]
        if elsewhere := check_known(checkable, ids):
            names = ", ".join(sorted({each.mutant.split(":", 1)[0] for each in elsewhere}))
            run.notes.append(f"marked as equivalent in files that these scenarios do not state: {names}")
        run.total = len({mutant.id for task in (*by_opa, *in_process) for mutant in task.mutants})
        equivalent = by_id(marked)

        def take(judged: Iterable[Judgement]) -> None:
            for each in judged:
                run.add(each, equivalent)
            if progress is not None:
                progress(run)

        _work([task.judge for task in _mixed(by_opa, in_process)], take)
        search = {mutant.id: task.propose for task in (*in_process, *by_opa) for mutant in task.mutants}
        survivors = run.of(Fate.SURVIVED)[:MOST_SEARCHED]
        _work([_searching(each, search[each.mutant.id]) for each in survivors], take)
        run.complete = True


def _rego_tasks(
    recorded: Sequence[Recorded], opa: Path, stack: ExitStack, wanted: Callable[[Mutant], bool]
) -> Iterator[_Task]:
    """A mutant of a module that decides in several groups of suites has survived when no group notices it."""
    trials: dict[str, tuple[RegoMutant, list[RegoTrial]]] = {}
    groups = _grouped(recorded, lambda each: _deciding(each.suite))
    # The largest first: it is the likeliest to kill.
    for group in sorted(groups, key=lambda each: -sum(len(one.results) for one in each)):
        suite = group[0].suite
        modules = policy_modules(suite)
        mutants = [mutant for mutant in rego_mutants(opa, modules) if wanted(mutant)]
        if mutants:
            manifests = {each.suite.manifest.digest: each.suite.manifest.document for each in group}
            data = merged_data(bundle_of(suite).data, manifests=manifests, data=suite.data)
            texts = {path: module.text for path, module in modules.items()}
            trial = stack.enter_context(RegoTrial(opa, texts, data, group))
            for mutant in mutants:
                trials.setdefault(mutant.id, (mutant, []))[1].append(trial)

    def task(mutant: RegoMutant, of: Sequence[RegoTrial]) -> _Task:
        return _Task([mutant], lambda: [_judged(mutant, of)], lambda _: propose_for_rego(of[0], mutant))

    return (task(mutant, of) for mutant, of in trials.values())


def _judged(mutant: RegoMutant, trials: Sequence[RegoTrial]) -> Judgement:
    unnoticed = 0
    for trial in trials:
        judgement = trial.judge(mutant)
        unnoticed += judgement.unnoticed
        if judgement.fate is not Fate.SURVIVED:
            return judgement
    return replace(judgement, unnoticed=unnoticed)


def _manifest_tasks(
    recorded: Sequence[Recorded], opa: Path | None, wanted: Callable[[Mutant], bool]
) -> Iterator[_Task]:
    def task(group: Sequence[Recorded], part: Sequence[ManifestMutant]) -> _Task:
        by_id = {mutant.id: mutant for mutant in part}
        return _Task(
            part,
            lambda: ManifestTrial(group).judge_all(part),
            lambda mutant: propose_for_manifest(group, by_id[mutant.id], opa),
        )

    for group in _grouped(recorded, lambda each: each.suite.manifest.digest.encode()):
        suite = group[0].suite
        mutants = [each for each in manifest_mutants(suite.manifest, StatedFiles(suite)) if wanted(each)]
        for start in range(0, len(mutants), _AT_ONCE):
            yield task(group, mutants[start : start + _AT_ONCE])


def _data_tasks(recorded: Sequence[Recorded], opa: Path | None, wanted: Callable[[Mutant], bool]) -> Iterator[_Task]:
    def task(group: Sequence[Recorded], mutant: DataMutant) -> _Task:
        return _Task([mutant], lambda: [DataTrial(group).judge(mutant)], lambda _: propose_for_data(group, mutant, opa))

    for group in _grouped(recorded, lambda each: canonical(dict(each.suite.data))):
        suite = group[0].suite
        yield from (task(group, each) for each in data_mutants(suite.data, stated(suite, "data")) if wanted(each))


def _searching(survivor: Judgement, propose: Callable[[Mutant], Proposal]) -> Callable[[], Iterable[Judgement]]:
    return lambda: [replace(survivor, proposal=propose(survivor.mutant))]


def _mixed(*kinds: Sequence[_Task]) -> list[_Task]:
    """Tasks of several kinds, evenly among each other: while OPA works on one, Python works on another."""
    places = [(at / len(tasks), number, at) for number, tasks in enumerate(kinds) for at in range(len(tasks))]
    return [kinds[number][at] for _, number, at in sorted(places)]


def _deciding(suite: Suite) -> bytes:
    texts = {path: module.text for path, module in policy_modules(suite).items()}
    return canonical([texts, dict(suite.data), suite.bundle is not None and str(suite.bundle)])


def _grouped(recorded: Iterable[Recorded], key: Callable[[Recorded], bytes]) -> list[list[Recorded]]:
    groups: dict[bytes, list[Recorded]] = {}
    for each in recorded:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _work(tasks: Sequence[Callable[[], Iterable[Judgement]]], take: Callable[[Iterable[Judgement]], None]) -> None:
    """Do tasks, some at a time, and take their results in this thread; what is not begun is left on an error."""
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-mutate")
    stopped = Event()

    def done(task: Callable[[], Iterable[Judgement]]) -> list[Judgement]:
        return list(takewhile(lambda _: not stopped.is_set(), task()))

    try:
        pending: set[Future[list[Judgement]]] = {pool.submit(done, task) for task in tasks}
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                take(future.result())
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
