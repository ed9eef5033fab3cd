"""Run mutation testing: create the mutants of suites, test each mutant, and search a scenario for each survivor."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from pdp.workbench.mutation.equivalents import Marked
from pdp.workbench.mutation.mutant import DataMutant, Fate, Judgement, ManifestMutant, Mutant, RegoMutant
from pdp.workbench.mutation.search import propose_scenario
from pdp.workbench.mutation.trial import Recorded, judge_embedded, open_rego_trial, record
from pdp.workbench.scenarios.files.suite import Suite, policy_modules

MOST_SEARCHED: Final = 30
"""The maximum number of causes for which a scenario is searched, because a search takes time."""

RULE_DROPPED: Final = "rule dropped"


@dataclass(slots=True)
class MutationRun:
    """The results of a mutation run so far: a judgement of each tested mutant by its id, and the `total` of mutants.

    `complete` is set when all mutants were tested and the search for scenarios has ended. `notes` name parts that were
    not tested. `faults` are about mutants that are marked as equivalent but are not. `unreached` has the survivors that
    stand for a rule that no scenario reaches, by id, with the number of the rule's mutants, which were not tested.
    """

    total: int = 0
    judgements: dict[str, Judgement] = field(default_factory=dict)
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unreached: dict[str, int] = field(default_factory=dict)

    def count(self, fate: Fate) -> int:
        """Return the number of mutants with the given fate."""
        return len(self.of(fate))

    @property
    def score(self) -> float | None:
        """The percentage of killed mutants among killed and surviving mutants; None if there are no such mutants."""
        killed, survived = self.count(Fate.KILLED), self.count(Fate.SURVIVED)
        return 100 * killed / (killed + survived) if killed + survived else None

    def of(self, fate: Fate) -> list[Judgement]:
        """Return the judgements of the mutants with the given fate, sorted by location."""
        judgements = [judgement for judgement in self.judgements.values() if judgement.fate is fate]
        return sorted(judgements, key=_place)

    def without_effect(self, identity: str) -> bool:
        """Return whether a tested mutant survived, and decides every recorded request as the original does."""
        judgement = self.judgements[identity]
        return judgement.fate is Fate.SURVIVED and not judgement.unnoticed

    def add(self, judgement: Judgement, entry: Marked | None) -> None:
        """Add a judgement. `entry` is the entry of `mutants.yaml` that marks the mutant as equivalent, if any."""
        if entry is not None:
            self.faults += entry.faults(judgement)
            if judgement.fate is Fate.SURVIVED:
                judgement = replace(judgement, fate=Fate.EQUIVALENT, by=entry.reason)
        self.judgements[judgement.mutant.id] = judgement

    def as_json(self) -> dict[str, Any]:
        """Return the counts, the score in percent (null if no mutant counts), and every survivor as plain JSON.

        `invalid` counts mutants that cannot be loaded. After an interruption, `complete` is false. `unreached` of a
        survivor counts the other mutants of its rule, if no scenario reaches the rule.
        """
        return {
            **{fate.value: self.count(fate) for fate in Fate},
            "total": self.total,
            "score": None if self.score is None else round(self.score, 2),
            "complete": self.complete,
            "notes": self.notes,
            "survivors": [
                {**_survivor(survivor), "unreached": self.unreached.get(survivor.mutant.id, 0)}
                for survivor in self.of(Fate.SURVIVED)
            ],
        }

    def summary(self) -> str:
        """Return the counts and the score in one line of text."""
        counts = ", ".join(
            f"{self.count(fate)} {fate.value}" for fate in Fate if self.count(fate) or fate is Fate.KILLED
        )
        judged, total = len(self.judgements), self.total
        whole = f"{total} mutant{'s' * (total != 1)}" if judged == total else f"{judged} of {total} mutants"
        score = "nothing to score" if self.score is None else f"score {self.score:.1f} %"
        more = f"; {sum(self.unreached.values())} more in rules that no scenario reaches" if self.unreached else ""
        return f"{whole}: {counts}; {score}{more}"


def cause(survivor: Judgement) -> tuple[str, tuple[int, str], str]:
    """Return what mutants with a common cause share: the file, the rule or tool, and the kind."""
    mutant = survivor.mutant
    return mutant.place.file, mutant.rule, mutant.kind


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
    """A mutant to test with some suites. `unreached` is the module and line of its rule if no scenario reaches it."""

    mutant: RegoMutant | ManifestMutant | DataMutant
    suites: Sequence[Recorded]
    judge: Callable[[], Judgement]
    unreached: tuple[str, int] | None = None


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
    modules: Collection[str] | None = None,
) -> None:
    """Test mutants of the suites, and add the results to `run`. After an interruption, `run` has the results so far.

    Without `opa`, Rego is not mutated. With `baseline`, the baseline's Rego is mutated as well as custom modules. The
    id or kind of a mutant must contain `only`, and its id must not contain `without`. At most `sample` mutants are
    tested; equal seeds select equal mutants. With `modules`, only these Rego modules are mutated, no scenario is
    searched, and entries of `marked` about other files are ignored. Scenarios that fail without a mutant are errors,
    and so are entries of `marked` that name no mutant.
    """
    recorded, ids = record(suites), set[str]()
    own = {path for suite in suites for path, module in policy_modules(suite).items() if module.custom}
    equivalent = {entry.mutant: entry for entry in marked}
    # Files with marked mutants are included, so that a mark that names no mutant is found.
    paths = modules or (None if baseline else own.union(entry.file for entry in marked))

    def selected(mutant: Mutant) -> bool:
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
        for attempt in _attempts(recorded, opa, stack, selected, paths, others=modules is None):
            attempts.setdefault(attempt.mutant.id, []).append(attempt)
        run.notes += _left_out(marked, ids, opa)
        # The mutants are ordered by hash, so that mutants for OPA and for the embedded engine are mixed.
        mixed = sorted(attempts, key=lambda identity: sha256(f"{seed}\0{identity}".encode()).digest())
        if sample is not None and sample < len(mixed):
            run.notes.append(f"tested {sample} of {len(mixed)} mutants, drawn with the seed {seed!r}")
            mixed = mixed[:sample]
        run.total = len(mixed)
        rules = _unreached(attempts, mixed) if sample is None else {}
        first = [identity for identity in rules if identity not in equivalent]
        _work([partial(_judged, attempts[identity]) for identity in first], add)
        run.unreached |= {identity: len(rules[identity]) for identity in first if run.without_effect(identity)}
        untested = {other for identity in run.unreached for other in rules[identity]}
        mixed = [identity for identity in mixed if identity not in untested]
        run.total = len(mixed)
        _work([partial(_judged, attempts[identity]) for identity in mixed if identity not in run.judgements], add)
        if opa is not None and modules is None:
            _search(run, own, attempts, opa, add)
        run.complete = True


def _unreached(attempts: Mapping[str, Sequence[_Attempt]], among: Iterable[str]) -> dict[str, set[str]]:
    """Return the mutants that drop a rule which no scenario reaches, each with all other mutants of the rule."""
    rules: dict[Any, list[str]] = {}
    for identity in among:
        places = {attempt.unreached for attempt in attempts[identity]}
        if None not in places:
            rules.setdefault(next(iter(places)), []).append(identity)
    found = {}
    for identities in rules.values():
        dropped = [each for each in identities if attempts[each][0].mutant.kind == RULE_DROPPED]
        if dropped:
            first = min(dropped, key=lambda identity: attempts[identity][0].mutant.place.line)
            found[first] = {*identities} - {first}
    return found


def _search(
    run: MutationRun,
    own: Collection[str],
    attempts: Mapping[str, Sequence[_Attempt]],
    opa: Path,
    add: Callable[[Judgement], None],
) -> None:
    causes = _causes(run, own)
    if len(causes) > MOST_SEARCHED:
        run.notes.append(
            f"searched scenarios for {MOST_SEARCHED} of {len(causes)} rules and kinds of mutants only, "
            "those in your own Rego first"
        )
    _work([partial(_searched, each, attempts[each.mutant.id], opa) for each in causes[:MOST_SEARCHED]], add)


def _causes(run: MutationRun, own: Collection[str]) -> list[Judgement]:
    """Return the first survivor of each cause: rules that no scenario reaches first, then those of custom Rego."""
    survivors = run.of(Fate.SURVIVED)
    survivors.sort(key=lambda survivor: getattr(survivor.mutant, "module", None) not in own)
    survivors.sort(key=lambda survivor: survivor.mutant.id not in run.unreached)
    return list({cause(survivor): survivor for survivor in reversed(survivors)}.values())[::-1]


def _left_out(marked: Sequence[Marked], ids: AbstractSet[str], opa: Path | None) -> Iterator[str]:
    """Yield notes on untested parts. Raises `FileFaultsError` if an entry about a tested file names no mutant."""
    if opa is None:
        yield "without Open Policy Agent, Rego is not mutated and no scenario is proposed; run: pdp opa install"
    files = {identity.partition(":")[0] for identity in ids}
    checked = [entry for entry in marked if opa is not None or ".rego:" not in entry.mutant]
    faults = [
        entry.fault(f"no mutant `{entry.mutant}`", "its text has changed: update the id, or remove the entry")
        for entry in checked
        if entry.file in files and entry.mutant not in ids
    ]
    if faults:
        raise FileFaultsError(faults)
    elsewhere = sorted({entry.file for entry in checked} - files)
    if elsewhere:
        yield f"marked as equivalent in files that these scenarios do not use: {', '.join(elsewhere)}"


def _attempts(
    recorded: Sequence[Recorded],
    opa: Path | None,
    stack: ExitStack,
    selected: Callable[[Mutant], bool],
    paths: Collection[str] | None,
    *,
    others: bool,
) -> Iterator[_Attempt]:
    for group in _grouped(recorded, lambda ran: _deciding(ran.suite)):
        if opa is None:
            break
        mutants_of_rego = rego_mutants(opa, policy_modules(group[0].suite), paths=paths)
        broken = [mutant for mutant in mutants_of_rego if selected(mutant)]
        if broken:
            trial = stack.enter_context(open_rego_trial(opa, group))
            reached = trial.reached() if others else None
            for mutant in broken:
                line, _ = mutant.rule
                unreached = reached is not None and line not in reached.get(mutant.module, ())
                place = (mutant.module, line) if unreached else None
                yield _Attempt(mutant, group, partial(trial.judge, mutant), place)
    if not others:
        return
    # A mutant of a manifest or of data has the same id in all groups of suites, so it is reported once.
    for group in _grouped(recorded, lambda ran: ran.suite.manifest.digest.encode() + _deciding(ran.suite)):
        mutants: list[ManifestMutant | DataMutant] = [*manifest_mutants(group[0].suite), *data_mutants(group[0].suite)]
        yield from (
            _Attempt(mutant, group, partial(judge_embedded, group, mutant)) for mutant in mutants if selected(mutant)
        )


def _judged(attempts: Sequence[_Attempt]) -> Judgement:
    """Test a mutant with each group of suites in turn. The mutant survives if no group kills it."""
    unnoticed = 0
    for attempt in attempts:
        judgement = attempt.judge()
        unnoticed += judgement.unnoticed
        if judgement.fate is not Fate.SURVIVED:
            return judgement
    return replace(judgement, unnoticed=unnoticed)


def _searched(survivor: Judgement, attempts: Sequence[_Attempt], opa: Path) -> Judgement:
    for attempt in attempts:
        proposal = propose_scenario(attempt.mutant, attempt.suites, opa, solved=attempt.unreached is not None)
        if proposal.scenario is not None:
            break
    return replace(survivor, proposal=proposal)


def _deciding(suite: Suite) -> bytes:
    texts = {path: module.text for path, module in policy_modules(suite).items()}
    return canonical([texts, dict(suite.data), suite.bundle is not None and str(suite.bundle)])


def _grouped(recorded: Iterable[Recorded], key: Callable[[Recorded], bytes]) -> list[list[Recorded]]:
    """Return the suites grouped by key. The largest group comes first, as it is most likely to kill a mutant."""
    groups: dict[bytes, list[Recorded]] = {}
    for suite in recorded:
        groups.setdefault(key(suite), []).append(suite)
    return sorted(groups.values(), key=lambda group: -sum(len(suite.results) for suite in group))


def _work(tasks: Sequence[Callable[[], Judgement]], add: Callable[[Judgement], None]) -> None:
    """Run tasks in a thread pool, and add each result in this thread. After an error, waiting tasks are cancelled."""
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pdp-mutate")
    try:
        for future in as_completed([pool.submit(task) for task in tasks]):
            add(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
