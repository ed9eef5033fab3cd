"""A whole run: mutants made of what the suites state, each put to the test, and what came of it as far as it came."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pdp.canonical import canonical
from pdp.engine.data import merged_data
from pdp.harness.engines import bundle_of
from pdp.harness.mutation.data_mutants import data_mutants
from pdp.harness.mutation.equivalents import by_id, check_known
from pdp.harness.mutation.manifest_mutants import manifest_mutants
from pdp.harness.mutation.mutant import Fate, RegoMutant
from pdp.harness.mutation.other_trials import DataTrial, ManifestTrial
from pdp.harness.mutation.recorded import record
from pdp.harness.mutation.rego_mutants import rego_mutants
from pdp.harness.mutation.rego_trial import RegoTrial
from pdp.harness.mutation.searching import propose_for_data, propose_for_manifest, propose_for_rego
from pdp.harness.mutation.stated_files import StatedFiles, stated
from pdp.harness.suite import policy_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.errors import Fault
    from pdp.harness.mutation.equivalents import Marked
    from pdp.harness.mutation.judgement import Judgement
    from pdp.harness.mutation.mutant import DataMutant, ManifestMutant, Mutant
    from pdp.harness.mutation.recorded import Recorded
    from pdp.harness.suite import Suite
    from pdp.rego.modules import Module

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
        without_rego: why no Rego was broken, or None.
        faults: of entries that mark a mutant as equivalent that is none.
    """

    total: int = 0
    judgements: dict[str, Judgement] = field(default_factory=dict)
    complete: bool = False
    without_rego: str | None = None
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
        plan = _Plan(record(suites), opa, stack)
        if opa is None:
            run.without_rego = "Rego is not broken without Open Policy Agent: run pdp opa install"
        checkable = [each for each in marked if opa is not None or ".rego:" not in each.mutant]
        check_known(checkable, plan.ids())
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
        found = replace(found, fate=Fate.EQUIVALENT, by=entry.reason)
    elif entry is not None and found.fate in (Fate.KILLED, Fate.INVALID):
        what = f"killed by {found.by}" if found.fate is Fate.KILLED else f"no mutant: {found.by}"
        run.faults.append(entry.fault(f"`{mutant.id}` is not equivalent but {what}", "take this entry out"))
    run.judgements[mutant.id] = found


def _wanted(mutant: Mutant, *, baseline: bool, only: str | None, own: frozenset[str]) -> bool:
    if isinstance(mutant, RegoMutant) and not baseline and mutant.module not in own:
        return False
    return only is None or only in mutant.id or only in mutant.kind


_Work = "Callable[[], Iterable[Judgement]]"


def _done(task: Callable[[], Iterable[Judgement]]) -> list[Judgement]:
    return list(task())


def _work(tasks: Sequence[Callable[[], Iterable[Judgement]]], take: Callable[[Iterable[Judgement]], None]) -> None:
    """Do tasks, some at a time, and take what they come to in this thread; what is not begun is left on an error."""
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-mutate")
    try:
        pending: set[Future[list[Judgement]]] = {pool.submit(_done, task) for task in tasks}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                take(future.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Plan:
    """The mutants of every sort, and who judges them."""

    def __init__(self, recorded: Sequence[Recorded], opa: Path | None, stack: ExitStack) -> None:
        self._recorded = recorded
        self.own: frozenset[str] = frozenset()
        self._rego: dict[str, tuple[RegoMutant, list[RegoTrial]]] = {}
        self._manifests: list[tuple[list[Recorded], list[ManifestMutant]]] = []
        self._data: list[tuple[DataTrial, list[Recorded], list[DataMutant]]] = []
        self._stack = stack
        if opa is not None:
            self._plan_rego(opa)
        for group in _grouped(recorded, lambda each: each.suite.manifest.digest.encode()):
            suite = group[0].suite
            self._manifests.append((group, manifest_mutants(suite.manifest, StatedFiles(suite))))
        for group in _grouped(recorded, lambda each: canonical(dict(each.suite.data))):
            suite = group[0].suite
            self._data.append((DataTrial(group), group, data_mutants(suite.data, stated(suite, "data"))))

    def _plan_rego(self, opa: Path) -> None:
        own: set[str] = set()
        made: dict[bytes, list[RegoMutant]] = {}
        # The largest first: it is the likeliest to kill.
        groups = _grouped(self._recorded, lambda each: _deciding(each.suite))
        for group in sorted(groups, key=lambda each: -sum(len(one.results) for one in each)):
            suite = group[0].suite
            modules = policy_modules(suite)
            bundle = bundle_of(suite)
            manifests = {each.suite.manifest.digest: each.suite.manifest.document for each in group}
            data = merged_data(bundle.data, manifests=manifests, data=suite.data)
            texts = {path: module.text for path, module in modules.items()}
            trial = RegoTrial(opa, texts, data, group)
            own |= {path for path, module in modules.items() if module.custom}
            for path, module in modules.items():
                key = canonical([path, module.text])
                if key not in made:
                    made[key] = rego_mutants(opa, {path: module}, _any)
                for mutant in made[key]:
                    self._rego.setdefault(mutant.id, (mutant, []))[1].append(trial)
        self.own = frozenset(own)

    def ids(self) -> Iterator[str]:
        """Yield the identity of every mutant that could be made."""
        yield from self._rego
        for _, manifests in self._manifests:
            yield from (mutant.id for mutant in manifests)
        for _, _, data in self._data:
            yield from (mutant.id for mutant in data)

    def tasks(self, wanted: Callable[[Mutant], bool]) -> list[tuple[list[str], Callable[[], Iterable[Judgement]]]]:
        """Return what has to be done for the mutants that are wanted: whose fate it tells, and how."""
        found: list[tuple[list[str], Callable[[], Iterable[Judgement]]]] = []
        opened: dict[int, RegoTrial] = {}
        for mutant, trials in self._rego.values():
            if wanted(mutant):
                for trial in trials:
                    if id(trial) not in opened:
                        opened[id(trial)] = self._stack.enter_context(trial)
                found.append(([mutant.id], _judging(mutant, trials)))
        for group, mutants in self._manifests:
            some = [mutant for mutant in mutants if wanted(mutant)]
            if some:
                found.append(([mutant.id for mutant in some], _weakening(group, some)))
        for changing, _, changes in self._data:
            found += [([mutant.id], _changing(changing, mutant)) for mutant in changes if wanted(mutant)]
        return found

    def search(self, survivor: Judgement) -> Callable[[], Iterable[Judgement]]:
        """Return the search for a scenario that would have noticed."""
        mutant = survivor.mutant

        def work() -> Iterator[Judgement]:
            if isinstance(mutant, RegoMutant):
                yield replace(survivor, proposal=propose_for_rego(self._rego[mutant.id][1][0], mutant))
                return
            for group, manifests in self._manifests:
                for each in manifests:
                    if each.id == mutant.id:
                        yield replace(survivor, proposal=propose_for_manifest(group, each))
                        return
            for _, group, changes in self._data:
                for one in changes:
                    if one.id == mutant.id:
                        yield replace(survivor, proposal=propose_for_data(group, one))
                        return

        return work


def _judging(mutant: RegoMutant, trials: Sequence[RegoTrial]) -> Callable[[], Iterable[Judgement]]:
    def work() -> Iterator[Judgement]:
        unnoticed = 0
        for trial in trials:
            found = trial.judge(mutant)
            unnoticed += found.unnoticed
            if found.fate is not Fate.SURVIVED:
                break
        yield replace(found, unnoticed=unnoticed) if found.fate is Fate.SURVIVED else found

    return work


def _weakening(group: Sequence[Recorded], mutants: Sequence[ManifestMutant]) -> Callable[[], Iterable[Judgement]]:
    return lambda: ManifestTrial(group).judge_all(mutants)


def _changing(trial: DataTrial, mutant: DataMutant) -> Callable[[], Iterable[Judgement]]:
    return lambda: [trial.judge(mutant)]


def _deciding(suite: Suite) -> bytes:
    texts = {path: module.text for path, module in policy_modules(suite).items()}
    return canonical([texts, dict(suite.data), suite.bundle is not None and str(suite.bundle)])


def _grouped(recorded: Iterable[Recorded], key: Callable[[Recorded], bytes]) -> list[list[Recorded]]:
    groups: dict[bytes, list[Recorded]] = {}
    for each in recorded:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


def _any(_: Module) -> bool:
    return True
