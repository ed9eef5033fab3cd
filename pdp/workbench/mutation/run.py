"""A whole run: mutants of what suites state, each put to the test, and a scenario searched for each survivor."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pdp.errors import Fault, FileFaultsError
from pdp.json import canonical
from pdp.workbench.diff.comparison import WORKERS
from pdp.workbench.mutation.edits import data_mutants, manifest_mutants, rego_mutants
from pdp.workbench.mutation.equivalents import Marked, different
from pdp.workbench.mutation.mutant import DataMutant, Fate, Judgement, ManifestMutant, Mutant, RegoMutant
from pdp.workbench.mutation.search import propose_scenario
from pdp.workbench.mutation.trial import Recorded, judge_embedded, open_rego_trial, record
from pdp.workbench.scenarios.files.suite import Suite, policy_modules

MOST_SEARCHED: Final = 30
"""For how many survivors a scenario is searched: where there are more, those will show what to do."""


@dataclass(slots=True)
class MutationRun:
    """What is known so far.

    Attributes:
        judgements: of the `total` of mutants, by id.
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
        return len(self.of(fate))

    @property
    def score(self) -> float | None:
        """Killed of killed and survived, in percent; None when there are neither."""
        killed, survived = self.count(Fate.KILLED), self.count(Fate.SURVIVED)
        return 100 * killed / (killed + survived) if killed + survived else None

    def of(self, fate: Fate) -> list[Judgement]:
        """Return the judgements of one fate, in the order of their places."""
        judgements = [judgement for judgement in self.judgements.values() if judgement.fate is fate]
        return sorted(judgements, key=_place)

    def add(self, judgement: Judgement, entry: Marked | None) -> None:
        """Add a judgement; `entry` is the one that marks its mutant as equivalent, if there is one."""
        if entry is not None:
            self.faults += entry.faults(judgement)
            if judgement.fate is Fate.SURVIVED:
                judgement = replace(judgement, fate=Fate.EQUIVALENT, by=entry.reason)
        self.judgements[judgement.mutant.id] = judgement

    def as_json(self) -> dict[str, Any]:
        """Return a run as plain JSON: counts, the score in percent (null: nothing was judged), and every survivor.

        `total` counts what was made, `invalid` of it what OPA refuses; `complete` is false when the run was
        interrupted, and then killed, survived, equivalent and invalid do not come to `total`.
        """
        return {
            **{fate.value: self.count(fate) for fate in Fate},
            "total": self.total,
            "score": None if self.score is None else round(self.score, 2),
            "complete": self.complete,
            "notes": self.notes,
            "survivors": [_survivor(survivor) for survivor in self.of(Fate.SURVIVED)],
        }

    def summary(self) -> str:
        """Return the counts on one line."""
        counts = ", ".join(
            f"{self.count(fate)} {fate.value}" for fate in Fate if self.count(fate) or fate is Fate.KILLED
        )
        judged, total = len(self.judgements), self.total
        whole = f"{total} mutant{'s' * (total != 1)}" if judged == total else f"{judged} of {total} mutants"
        score = "nothing to score" if self.score is None else f"score {self.score:.1f} %"
        return f"{whole}: {counts}; {score}"


def report_lines(run: MutationRun) -> Iterator[str]:
    """Yield the survivors as plain lines, by rule, tool or datum: first where one of them admits more, then the most.

    A group has a headline and its survivors; an empty line ends it.
    """
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for survivor in run.of(Fate.SURVIVED):
        groups.setdefault((survivor.mutant.owner, survivor.mutant.place.file), []).append(survivor)
    dangers = {name: sum(map(_loosens, group)) for name, group in groups.items()}
    for name in sorted(groups, key=lambda name: (not dangers[name], -len(groups[name]))):
        (owner, file), group, loosening = name, groups[name], dangers[name]
        admit = f", {loosening} of which {'admits' if loosening == 1 else 'admit'} more" if loosening else ""
        yield f"{owner} in {file}: {len(group)} {'survives' if len(group) == 1 else 'survive'}{admit}"
        for survivor in sorted(group, key=_loosens, reverse=True):
            yield from (f"  {line}".rstrip() for line in _survivor_lines(survivor))
        yield ""


def _loosens(survivor: Judgement) -> bool:
    return survivor.proposal is not None and survivor.proposal.loosens


def _survivor_lines(survivor: Judgement) -> Iterator[str]:
    mutant, proposal = survivor.mutant, survivor.proposal
    more = ", and admits more" if _loosens(survivor) else ""
    yield f"{mutant.place.file}:{mutant.place.line}: {mutant.kind} in {mutant.owner} survives{more}"
    yield f"  {mutant.id}"
    yield from (f"    {line}" for line in mutant.diff.splitlines())
    if survivor.unnoticed:
        yield f"  {different(survivor.unnoticed)}, and no expectation says so"
    if proposal is None:
        return
    yield f"  no scenario to propose: {proposal.note}" if proposal.scenario is None else f"  add to {proposal.file}:"
    yield from (f"    {line}" for line in (proposal.scenario or "").splitlines())


def _place(judgement: Judgement) -> tuple[str, int, str]:
    mutant = judgement.mutant
    return mutant.place.file, mutant.place.line, mutant.id


def _survivor(survivor: Judgement) -> dict[str, Any]:
    mutant, proposal = survivor.mutant, survivor.proposal
    return {
        **{name: getattr(mutant, name) for name in ("id", "kind", "owner", "original", "changed", "diff")},
        "file": mutant.place.file,
        "line": mutant.place.line,
        "unnoticed": survivor.unnoticed,
        "proposal": proposal and {**asdict(proposal), "file": proposal.file and str(proposal.file)},
    }


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A mutant with suites that share what it changes, and what judges it there."""

    mutant: RegoMutant | ManifestMutant | DataMutant
    suites: Sequence[Recorded]
    judge: Callable[[], Judgement]


def mutate(
    suites: Sequence[Suite],
    *,
    opa: Path | None,
    baseline: bool,
    only: str | None,
    marked: Sequence[Marked],
    run: MutationRun,
    sample: int | None = None,
    seed: str = "",
    without: str | None = None,
    progress: Callable[[MutationRun], None] | None = None,
    modules: Container[str] | None = None,
) -> None:
    """Break what the suites state, run them, and put the results into `run`, also when it is interrupted.

    Without `opa` no Rego is broken; with `baseline` its Rego as well as the suites' own. `only`: a text that a mutant's
    id or kind has to contain; `without`: one that its id must not contain. `sample`: how many mutants are judged at
    most, the same ones for the same `seed`.
    `modules`: paths of Rego modules: nothing but these is broken, and no scenario is searched for what survives.

    Raises:
        UsageError: a scenario fails without any change, or OPA cannot be run.
        FileFaultsError: an entry of `marked` names no mutant.
        BundleError, EngineError: an engine cannot be opened.
    """
    recorded, ids = record(suites), set[str]()
    own = {path for suite in suites for path, module in policy_modules(suite).items() if module.custom}
    equivalent = {entry.mutant: entry for entry in marked}

    def wanted(mutant: Mutant) -> bool:
        ids.add(mutant.id)
        if modules is not None:
            return isinstance(mutant, RegoMutant) and mutant.module in modules
        if isinstance(mutant, RegoMutant) and not baseline and mutant.module not in own:
            return False
        is_named = only is None or only in mutant.id or only in mutant.kind
        return is_named and (without is None or without not in mutant.id)

    def add(judgement: Judgement) -> None:
        run.add(judgement, equivalent.get(judgement.mutant.id))
        if progress is not None:
            progress(run)

    with ExitStack() as stack:
        attempts: dict[str, list[_Attempt]] = {}
        for attempt in _attempts(recorded, opa, stack, wanted):
            attempts.setdefault(attempt.mutant.id, []).append(attempt)
        run.notes += _left_out(marked, ids, opa)
        # By a hash, so that mutants for OPA and for the embedded engine are mixed.
        mixed = sorted(attempts, key=lambda identity: sha256(f"{seed}\0{identity}".encode()).digest())
        if sample is not None and sample < len(mixed):
            run.notes.append(f"{sample} of {len(mixed)} mutants, drawn by the seed {seed!r}")
            mixed = mixed[:sample]
        run.total = len(mixed)
        _work([partial(_judged, attempts[identity]) for identity in mixed], add)
        if opa is not None and modules is None:
            survivors = run.of(Fate.SURVIVED)
            # The user's own Rego first: that is what scenarios are written for.
            survivors.sort(key=lambda survivor: getattr(survivor.mutant, "module", None) not in own)
            if len(survivors) > MOST_SEARCHED:
                run.notes.append(
                    f"a scenario was searched for only for {MOST_SEARCHED} of {len(survivors)} survivors, "
                    "those in your own Rego first"
                )
            searched = survivors[:MOST_SEARCHED]
            _work([partial(_searched, survivor, attempts[survivor.mutant.id], opa) for survivor in searched], add)
        run.complete = True


def _left_out(marked: Sequence[Marked], ids: AbstractSet[str], opa: Path | None) -> Iterator[str]:
    """Check that the entries of files that are broken here name mutants, and say what is left out."""
    if opa is None:
        yield "without Open Policy Agent no Rego is broken and no scenario proposed: run pdp opa install"
    files = {identity.partition(":")[0] for identity in ids}
    sought = [entry for entry in marked if opa is not None or ".rego:" not in entry.mutant]
    faults = [
        entry.fault(f"no mutant `{entry.mutant}`", "its text has changed: look again, or take it out")
        for entry in sought
        if entry.file in files and entry.mutant not in ids
    ]
    if faults:
        raise FileFaultsError(faults)
    elsewhere = sorted({entry.file for entry in sought} - files)
    if elsewhere:
        yield f"marked as equivalent in files that these scenarios do not state: {', '.join(elsewhere)}"


def _attempts(
    recorded: Sequence[Recorded], opa: Path | None, stack: ExitStack, wanted: Callable[[Mutant], bool]
) -> Iterator[_Attempt]:
    for group in _grouped(recorded, lambda ran: _deciding(ran.suite)):
        if opa is None:
            break
        broken = [mutant for mutant in rego_mutants(opa, policy_modules(group[0].suite)) if wanted(mutant)]
        if broken:
            trial = stack.enter_context(open_rego_trial(opa, group))
            yield from (_Attempt(mutant, group, partial(trial.judge, mutant)) for mutant in broken)
    # What a manifest or data breaks to is the same wherever suites state it: one identity for all their groups.
    for group in _grouped(recorded, lambda ran: ran.suite.manifest.digest.encode() + _deciding(ran.suite)):
        mutants: list[ManifestMutant | DataMutant] = [*manifest_mutants(group[0].suite), *data_mutants(group[0].suite)]
        yield from (
            _Attempt(mutant, group, partial(judge_embedded, group, mutant)) for mutant in mutants if wanted(mutant)
        )


def _judged(attempts: Sequence[_Attempt]) -> Judgement:
    """Judge a mutant by one group of suites after the other: it has survived when no group notices it."""
    unnoticed = 0
    for attempt in attempts:
        judgement = attempt.judge()
        unnoticed += judgement.unnoticed
        if judgement.fate is not Fate.SURVIVED:
            return judgement
    return replace(judgement, unnoticed=unnoticed)


def _searched(survivor: Judgement, attempts: Sequence[_Attempt], opa: Path) -> Judgement:
    """Search with one group of suites after the other, until there is a scenario to propose."""
    for attempt in attempts:
        proposal = propose_scenario(attempt.mutant, attempt.suites, opa)
        if proposal.scenario is not None:
            break
    return replace(survivor, proposal=proposal)


def _deciding(suite: Suite) -> bytes:
    texts = {path: module.text for path, module in policy_modules(suite).items()}
    return canonical([texts, dict(suite.data), suite.bundle is not None and str(suite.bundle)])


def _grouped(recorded: Iterable[Recorded], key: Callable[[Recorded], bytes]) -> list[list[Recorded]]:
    """Suites with the same key; the largest group first: it is the likeliest to notice a mutant."""
    groups: dict[bytes, list[Recorded]] = {}
    for suite in recorded:
        groups.setdefault(key(suite), []).append(suite)
    return sorted(groups.values(), key=lambda group: -sum(len(suite.results) for suite in group))


def _work(tasks: Sequence[Callable[[], Judgement]], add: Callable[[Judgement], None]) -> None:
    """Do tasks, some at a time, and add their results in this thread; what is not begun is left on an error."""
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-mutate")
    try:
        for future in as_completed([pool.submit(task) for task in tasks]):
            add(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
