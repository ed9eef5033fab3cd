"""Two bundles compared in three layers: structure, calls that are known, and calls that nobody wrote down."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.bundle.file import read_bundle
from pdp.engine.data import merged_data
from pdp.json import canonical, digest
from pdp.workbench.diff.deciding import Duel
from pdp.workbench.diff.grid.bases import Entry
from pdp.workbench.diff.grid.cases import Grid
from pdp.workbench.diff.grid.constants import Constants
from pdp.workbench.diff.grid.extent import Extent, Subject
from pdp.workbench.diff.grid.probes import DIRECTORY, VERSION, probes
from pdp.workbench.diff.groups import grouped, sites
from pdp.workbench.diff.identity import Identity
from pdp.workbench.diff.known import LogRead, log_cases, scenario_cases
from pdp.workbench.diff.pairing import Sides, pair_manifests
from pdp.workbench.diff.policy_structure import NamedBundle
from pdp.workbench.diff.result import BundleDiff, Known
from pdp.workbench.diff.structure import structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.diff.deciding import Difference
    from pdp.workbench.diff.grid.probes import Probe
    from pdp.workbench.diff.groups import Group
    from pdp.workbench.diff.pairing import Pair
    from pdp.workbench.scenarios.files.suite import Suite

GRID: Final = 50_000
"""How many calls the grid has at most, unless it is told otherwise."""


def bundle_diff(
    old: Path,
    new: Path,
    *,
    suites: Sequence[Suite] = (),
    logs: Sequence[LogRead] = (),
    manifests: Sequence[EffectiveManifest] = (),
    most: int = GRID,
    progress: Callable[[str, int], None] | None = None,
) -> BundleDiff:
    """Compare two bundle files.

    Args:
        old: the one file.
        new: the other.
        suites: whose scenarios are decided by both.
        logs: recorded decisions, likewise.
        manifests: whole manifests, of files that were named; those of the suites are added.
        most: how many calls the grid has at most; 0: none.
        progress: is told what is being decided (`scenarios`, `logs`, `grid`), and of how many more calls.

    Raises:
        BundleError: a file is no usable bundle.
        UsageError, EngineError: as of `EmbeddedEngine`; tools files that cannot be read.
    """
    work = _Work(read_bundle(old), read_bundle(new), (str(old), str(new)), suites, manifests)
    structure = structure_of(*work.named, work.pairs, work.known)
    known = work.decide_known(logs, progress)
    groups, extent = work.decide_grid(most, progress) if most else ((), Extent())
    return BundleDiff(work.old, work.new, work.names, structure, known, groups, extent)


def first_difference(old: Bundle, new: Bundle, *, most: int = GRID) -> Difference | None:
    """Return the first call of the grid that two bundles decide differently; None when there is none.

    Raises:
        BundleError, EngineError: a bundle that cannot be used.
    """
    work = _Work(old, new, ("old", "new"), (), ())
    with work.grid(most) as (duel, grid), closing(duel.differences(grid.cases())) as found:
        return next(found, None)


class _Work:
    def __init__(
        self,
        old: Bundle,
        new: Bundle,
        names: tuple[str, str],
        suites: Sequence[Suite],
        manifests: Sequence[EffectiveManifest],
    ) -> None:
        self.old, self.new, self.names, self._suites = old, new, names, suites
        self.known = {each.digest: each for each in (*manifests, *(suite.manifest for suite in suites))}
        self._before, self._after = (dict(bundle.data.get("manifests", {})) for bundle in (old, new))
        self.pairs: tuple[Pair, ...] = pair_manifests(self._before, self._after)
        self._sides = Sides(self.pairs, self._before, self._after)
        self.named = NamedBundle(old, names[0]), NamedBundle(new, names[1])
        self._documents = {**self._before, **self._after}
        settings = (bundle.data.get("settings", {}) for bundle in (old, new))
        self._constants = Constants(old.modules, new.modules, *settings)

    def decide_known(self, logs: Sequence[LogRead], progress: Callable[[str, int], None] | None) -> Known:
        calls = 0
        found: list[Difference] = []

        def count(what: str) -> Callable[[int], None]:
            def told(more: int) -> None:
                nonlocal calls
                calls += more
                if progress is not None:
                    progress(what, more)

            return told

        entries = self._entries()
        for suites in _by_data(self._suites):
            extra = {suite.manifest.digest: suite.manifest.document for suite in suites}
            data = self._beside(suites[0].data)
            with Duel(self.old, self.new, manifests=extra, old_data=data, new_data=data) as duel:
                cases = list(scenario_cases(suites, duel.engines, self._sides, entries))
                found += duel.differences(cases, count("scenarios"))
        if logs:
            with Duel(self.old, self.new) as duel:
                for log in logs:
                    found += duel.differences(log_cases(log, self._sides, entries), count("logs"))
        return Known(
            scenarios=sum(len(suite.scenarios) for suite in self._suites),
            logged=sum(len(log.requests) for log in logs),
            skipped=sum(log.skipped for log in logs),
            calls=calls,
            groups=self._grouped(found),
        )

    def decide_grid(self, most: int, progress: Callable[[str, int], None] | None) -> tuple[tuple[Group, ...], Extent]:
        """Decide the grid by both bundles, and return what differs and what it covers."""
        with self.grid(most) as (duel, grid):
            found = duel.differences(grid.cases(), None if progress is None else lambda more: progress("grid", more))
            return self._grouped(found), grid.extent

    @contextmanager
    def grid(self, most: int) -> Iterator[tuple[Duel, Grid]]:
        """Open the engines for a grid, and give both."""
        documents, made_up = probes()
        laid = [_directory(bundle) for bundle in (self.old, self.new)]
        directory: dict[str, Any] = {}
        for bundle, data in zip((self.old, self.new), laid, strict=True):
            whole = merged_data(bundle.data, data=data).get("directory", {})
            for name, part in whole.items():
                if isinstance(part, dict):
                    directory[name] = {**directory.get(name, {}), **part}
        subjects = [*self._subjects(), *(_probe(one, documents[one.digest]) for one in made_up)]
        with Duel(self.old, self.new, manifests=documents, old_data=laid[0], new_data=laid[1]) as duel:
            yield (
                duel,
                Grid(
                    subjects,
                    sides=self._sides,
                    duel=duel,
                    clearances=_markings(subjects, directory),
                    directory=directory,
                    constants=self._constants,
                    most=most,
                ),
            )

    def _subjects(self) -> Iterator[Subject]:
        """The tools of the bundles' manifests; of one that is in several manifests alike, the first stands for all."""
        seen: set[bytes] = set()
        for pair in self.pairs:
            before, after = self._before.get(pair.old or "", {}), self._after.get(pair.new or "", {})
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

    def _grouped(self, found: Iterable[Difference]) -> tuple[Group, ...]:
        old, new = (sites(each.sites) for each in self.named)
        return grouped(found, old, new, Identity(self._constants.readings, (old, new)))

    def _entries(self) -> dict[tuple[str, str], Any]:
        documents = {**{name: each.document for name, each in self.known.items()}, **self._documents}
        return {
            (name, tool): entry
            for name, document in documents.items()
            for tool, entry in _dict(document.get("tools")).items()
        }

    def _beside(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The suite's data of the roots that neither bundle has: where a bundle has its own, that decides."""
        return {root: value for root, value in data.items() if root not in self.old.data and root not in self.new.data}


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
