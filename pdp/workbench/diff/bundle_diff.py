"""Two bundles compared in three layers: structure, known calls, and generated calls that nobody wrote down."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import merged_data
from pdp.json import canonical, digest
from pdp.workbench.diff.comparison import Comparison
from pdp.workbench.diff.grid.bases import Entry
from pdp.workbench.diff.grid.cases import Grid
from pdp.workbench.diff.grid.constants import Constants
from pdp.workbench.diff.grid.extent import Extent, Subject
from pdp.workbench.diff.grid.probes import DIRECTORY, VERSION, probes
from pdp.workbench.diff.groups import grouped
from pdp.workbench.diff.known import DecisionLog, log_calls, scenario_calls
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.diff.policies import BundleRules
from pdp.workbench.diff.result import BundleDiff, KnownCalls
from pdp.workbench.diff.structure import structure_of
from pdp.workbench.opa.program import needed_opa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.diff.comparison import Difference
    from pdp.workbench.diff.grid.probes import Probe
    from pdp.workbench.scenarios.files.suite import Suite

    Progress = Callable[[str, int], None] | None
    """Is given what is being decided (`scenarios`, `logs`, `generated`), and how many more calls have been."""

GENERATED: Final = 50_000
"""How many calls are generated at most, by default."""


def bundle_diff(
    old: Path,
    new: Path,
    *,
    suites: Sequence[Suite] = (),
    logs: Sequence[DecisionLog] = (),
    manifests: Sequence[EffectiveManifest] = (),
    most: int = GENERATED,
    progress: Progress = None,
) -> BundleDiff:
    """Compare two bundle files.

    Args:
        old: the one file.
        new: the other.
        suites: whose scenarios are decided by both.
        logs: recorded decisions, likewise.
        manifests: whole manifests, of files that were named; those of the suites are added.
        most: how many calls are generated at most; 0: none.
        progress: is given what is being decided.

    Raises:
        BundleError: a file is not a usable bundle.
        UsageError, EngineError: as of `EmbeddedEngine`; OPA is not here; tools files that cannot be read.
    """
    opa = needed_opa("comparing bundles")
    rules = BundleRules(read_bundle(old), str(old), opa), BundleRules(read_bundle(new), str(new), opa)
    calls = _Calls(rules[0].bundle, rules[1].bundle, suites, manifests)
    structure = structure_of(*rules, calls.manifests, calls.known)
    count = _Count(progress)
    known = grouped(calls.decide_known(logs, count), *rules, structure)
    generated, extent = grouped((), *rules, structure), Extent()
    if most:
        with calls.generated(most) as (comparison, grid):
            differences = comparison.differences(grid.cases(), count.of("generated"))
            generated, extent = grouped(differences, *rules, structure), grid.extent
    return BundleDiff(
        old=rules[0].bundle,
        new=rules[1].bundle,
        names=(str(old), str(new)),
        structure=structure,
        known=KnownCalls(
            scenarios=sum(len(suite.scenarios) for suite in suites),
            logged=sum(len(log.requests) for log in logs),
            skipped=sum(log.skipped for log in logs),
            calls=count.known,
            groups=known,
        ),
        generated=generated,
        extent=extent,
    )


def first_difference(old: Bundle, new: Bundle, *, most: int = GENERATED) -> Difference | None:
    """Return the first generated call that two bundles decide differently; None when there is none.

    Raises:
        BundleError, UsageError, EngineError: as of `bundle_diff`.
    """
    with (
        _Calls(old, new, (), ()).generated(most) as (comparison, grid),
        closing(comparison.differences(grid.cases())) as found,
    ):
        return next(found, None)


class _Count:
    """Counts the known calls that are decided, and hands on all progress."""

    def __init__(self, progress: Progress) -> None:
        self.known = 0
        self._progress = progress

    def of(self, what: str) -> Callable[[int], None]:
        def add(more: int) -> None:
            self.known += more if what != "generated" else 0
            if self._progress is not None:
                self._progress(what, more)

        return add


class _Calls:
    """The calls that two bundles are compared on.

    Attributes:
        manifests: those of both bundles; known: whole manifests by digest, of files that were named.
    """

    def __init__(
        self, old: Bundle, new: Bundle, suites: Sequence[Suite], manifests: Sequence[EffectiveManifest]
    ) -> None:
        self.manifests = Manifests.of(old, new)
        self.known = {each.digest: each for each in (*manifests, *(suite.manifest for suite in suites))}
        self._old, self._new, self._suites = old, new, suites
        settings = (bundle.data.get("settings", {}) for bundle in (old, new))
        self._constants = Constants(old.modules, new.modules, *settings)

    def decide_known(self, logs: Sequence[DecisionLog], count: _Count) -> Iterator[Difference]:
        """Yield the known calls that are decided differently."""
        entries = self._entries()
        for suites in _by_data(self._suites):
            documents = {suite.manifest.digest: suite.manifest.document for suite in suites}
            bundles = self._old, self._new
            # Where a bundle has a root of its own, the suite's data does not count.
            data = {root: value for root, value in suites[0].data.items() if all(root not in b.data for b in bundles)}
            with Comparison(*bundles, manifests=documents, old_data=data, new_data=data) as comparison:
                calls = list(scenario_calls(suites, comparison.engines, self.manifests, entries))
                yield from comparison.differences(calls, count.of("scenarios"))
        if logs:
            with Comparison(self._old, self._new) as comparison:
                for log in logs:
                    yield from comparison.differences(log_calls(log, self.manifests, entries), count.of("logs"))

    @contextmanager
    def generated(self, most: int) -> Iterator[tuple[Comparison, Grid]]:
        """Open the engines for generated calls, and give both."""
        documents, made_up = probes()
        laid = [_directory(bundle) for bundle in (self._old, self._new)]
        directory: dict[str, Any] = {}
        for bundle, data in zip((self._old, self._new), laid, strict=True):
            whole = merged_data(bundle.data, data=data).get("directory", {})
            for name, part in whole.items():
                if isinstance(part, dict):
                    directory[name] = {**directory.get(name, {}), **part}
        subjects = [*self._subjects(), *(_probe(one, documents[one.digest]) for one in made_up)]
        with Comparison(self._old, self._new, manifests=documents, old_data=laid[0], new_data=laid[1]) as comparison:
            yield (
                comparison,
                Grid(
                    subjects,
                    sides=self.manifests,
                    duel=comparison,
                    clearances=_markings(subjects, directory),
                    directory=directory,
                    constants=self._constants,
                    most=most,
                ),
            )

    def _subjects(self) -> Iterator[Subject]:
        """The tools of the bundles' manifests; of one that is in several manifests alike, the first stands for all."""
        seen: set[bytes] = set()
        for pair, before, after in self.manifests.documents():
            newest = after or before
            for tool in dict.fromkeys((*_dict(after.get("tools")), *_dict(before.get("tools")))):
                entries = tuple(
                    entry for each in (before, after) if isinstance(entry := _dict(each.get("tools")).get(tool), dict)
                )
                key = canonical([tool, [*entries], before.get("agents"), after.get("agents")])
                if key in seen or not entries:
                    continue
                seen.add(key)
                whole = self.known.get(pair.new or "") or self.known.get(pair.old or "")
                yield Subject(
                    Entry(
                        tool,
                        str(pair.new or pair.old),
                        str(newest.get("manifest_version", "")),
                        entries,
                        whole.tools.get(tool) if whole else None,
                        _agents(newest.get("agents"), tool),
                    ),
                    known_tool=True,
                )

    def _entries(self) -> dict[tuple[str, str], Any]:
        named = {name: each.document for name, each in self.known.items()}
        documents = {**named, **self.manifests.old, **self.manifests.new}
        return {
            (name, tool): entry
            for name, document in documents.items()
            for tool, entry in _dict(document.get("tools")).items()
        }


def _probe(probe: Probe, document: Mapping[str, Any]) -> Subject:
    agents = tuple(document.get("agents", ()))
    entry = Entry(probe.tool, probe.digest, VERSION, (probe.entry,), None, agents)
    return Subject(entry, known_tool=False, pairs=probe.pairs, hostile=probe.hostile, brief=probe.brief)


def _directory(bundle: Bundle) -> dict[str, Any]:
    """The grid's corpora and documents, where the bundle's directory leaves room for them."""
    own = bundle.data.get("directory", {})
    return {"directory": {name: part for name, part in DIRECTORY.items() if isinstance(own.get(name, {}), dict)}}


def _by_data(suites: Sequence[Suite]) -> list[list[Suite]]:
    found: dict[str, list[Suite]] = {}
    for suite in suites:
        found.setdefault(digest(canonical(dict(suite.data))), []).append(suite)
    return list(found.values())


def _markings(subjects: Sequence[Subject], directory: Mapping[str, Any]) -> list[str]:
    stated = [name for subject in subjects if not subject.brief for name in subject.entry.names("markings")]
    for kind in ("corpora", "documents"):
        for record in _dict(directory.get(kind)).values():
            stated += [name for name in _dict(record).get("markings") or () if isinstance(name, str)]
    return list(dict.fromkeys(stated))


def _agents(pins: Any, tool: str) -> tuple[str, ...]:
    if not isinstance(pins, dict):
        return ()
    return tuple(sorted(pins, key=lambda agent: (tool not in _dict(pins[agent]), agent)))


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
