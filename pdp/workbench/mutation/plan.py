"""The mutants of what suites state, and the tasks that judge them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pdp.engine.data import merged_data
from pdp.json import canonical
from pdp.workbench.mutation.asked import asked_rules, views
from pdp.workbench.mutation.data_mutants import data_mutants
from pdp.workbench.mutation.manifest_mutants import manifest_mutants
from pdp.workbench.mutation.mutant import Fate, RegoMutant
from pdp.workbench.mutation.other_trials import DataTrial, ManifestTrial
from pdp.workbench.mutation.rego_mutants import rego_mutants
from pdp.workbench.mutation.rego_trial import RegoTrial
from pdp.workbench.mutation.searching import propose_for_data, propose_for_manifest, propose_for_rego
from pdp.workbench.mutation.stated_files import StatedFiles, stated
from pdp.workbench.opa.syntax import parse_modules
from pdp.workbench.scenarios.files.suite import policy_modules
from pdp.workbench.scenarios.running.engines import bundle_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from pdp.workbench.mutation.judgement import Judgement
    from pdp.workbench.mutation.mutant import DataMutant, ManifestMutant, Mutant
    from pdp.workbench.mutation.recorded import Recorded
    from pdp.workbench.scenarios.files.suite import Suite

Task = tuple[list[str], "Callable[[], Iterable[Judgement]]"]
"""Whose fate it tells, and how."""

_AT_ONCE: Final = 64


class Plan:
    """The mutants of every sort, and who judges them.

    Args:
        recorded: the suites, which all pass.
        opa: the program, without which no Rego is broken.
        stack: closes what was opened for the tasks.

    Attributes:
        own: the modules of the suites' own policies, by their paths in the bundle.
    """

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
            own |= {path for path, module in modules.items() if module.custom}
            trees = parse_modules(opa, modules)
            for path, module in modules.items():
                key = canonical([path, module.text])
                if key not in made:
                    made[key] = rego_mutants(path, module, trees[path])
            parts = {path: made[canonical([path, module.text])] for path, module in modules.items()}
            trial = RegoTrial(opa, texts, data, group, views(trees))
            asked = asked_rules(trees)
            for mutants in parts.values():
                for mutant in mutants:
                    if (mutant.package, mutant.owner.split(".")[0]) in asked:
                        self._rego.setdefault(mutant.id, (mutant, []))[1].append(trial)
        self.own = frozenset(own)

    def ids(self) -> Iterator[str]:
        """Yield the identity of every mutant that could be made."""
        yield from self._rego
        for _, manifests in self._manifests:
            yield from (mutant.id for mutant in manifests)
        for _, _, data in self._data:
            yield from (mutant.id for mutant in data)

    def tasks(self, wanted: Callable[[Mutant], bool]) -> list[Task]:
        """Return what has to be done for the mutants that are wanted."""
        by_opa: list[Task] = []
        opened: dict[int, RegoTrial] = {}
        for mutant, trials in self._rego.values():
            if wanted(mutant):
                for trial in trials:
                    if id(trial) not in opened:
                        opened[id(trial)] = self._stack.enter_context(trial)
                by_opa.append(([mutant.id], _judging(mutant, trials)))
        in_process: list[Task] = []
        for group, mutants in self._manifests:
            some = [mutant for mutant in mutants if wanted(mutant)]
            for start in range(0, len(some), _AT_ONCE):
                part = some[start : start + _AT_ONCE]
                in_process.append(([mutant.id for mutant in part], _weakening(group, part)))
        for changing, _, changes in self._data:
            in_process += [([mutant.id], _changing(changing, mutant)) for mutant in changes if wanted(mutant)]
        return _mixed(by_opa, in_process)

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


def _mixed(*sorts: Sequence[Task]) -> list[Task]:
    """Tasks of several sorts, evenly among each other: while OPA works on one, Python works on another."""
    places = [(at / len(tasks), number, at) for number, tasks in enumerate(sorts) for at in range(len(tasks))]
    return [sorts[number][at] for _, number, at in sorted(places)]


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
