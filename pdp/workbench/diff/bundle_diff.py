"""Two bundles compared in three layers: structure, known calls, and generated calls that nobody wrote down.

What changed in rules and no call of the two layers shows is noted as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.decision import Verdict
from pdp.engine.bundle.file import read_bundle
from pdp.json import canonical, digest
from pdp.workbench.diff.comparison import Comparison, Difference, change_of
from pdp.workbench.diff.exercise import not_shown
from pdp.workbench.diff.generated import Extent, GeneratedCalls, directory_for_entries
from pdp.workbench.diff.groups import grouped
from pdp.workbench.diff.known import DecisionLog, log_calls, scenario_calls
from pdp.workbench.diff.manifests import Manifests
from pdp.workbench.diff.policies import BundleRules
from pdp.workbench.diff.result import BundleDiff, KnownCalls
from pdp.workbench.diff.review import review
from pdp.workbench.diff.structure import structure_of
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.neighbours.entries import document_digest, made_up
from pdp.workbench.opa.program import needed_opa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pdp.engine.bundle.file import Bundle
    from pdp.manifest.effective import EffectiveManifest
    from pdp.workbench.diff.comparison import ComparedCall, DecisionChange
    from pdp.workbench.scenarios.files.suite import Suite

    Progress = Callable[[str, int], None] | None
    """Is given what is being decided (`scenarios`, `logs`, `generated`), and how many more calls have been."""

GENERATED: Final = 50_000
"""How many calls are generated at most, by default."""

_LISTED: Final = 750
_OF_EACH: Final = 2


def bundle_diff(
    old: Path,
    new: Path,
    *,
    suites: Sequence[Suite] = (),
    logs: Sequence[DecisionLog] = (),
    most: int = GENERATED,
    progress: Progress = None,
    engine_timeout: float = ENGINE_TIMEOUT,
) -> BundleDiff:
    """Compare two bundle files.

    Args:
        old: the one file.
        new: the other.
        suites: whose scenarios are decided by both.
        logs: recorded decisions, likewise.
        most: how many calls are generated at most; 0: none.
        progress: is given what is being decided.
        engine_timeout: seconds that an engine has for one answer.

    Raises:
        BundleError: a file is not a usable bundle.
        UsageError, EngineError: as of `EmbeddedEngine`; OPA is not here; tools files that cannot be read.
        EngineTimeoutError: no answer in time, which says nothing of a bundle.
    """
    opa = needed_opa("comparing bundles")
    rules = BundleRules(read_bundle(old), str(old), opa), BundleRules(read_bundle(new), str(new), opa)
    bundles = rules[0].bundle, rules[1].bundle
    paired = Manifests.of(*bundles)
    whole = {suite.manifest.digest: suite.manifest for suite in suites}
    structure = structure_of(*rules, paired)
    known = _KnownCalls(*bundles, paired, whole, progress, engine_timeout=engine_timeout)
    shown = _ShownCalls()
    known_groups = grouped(shown.differing([*known.scenarios(suites), *known.logged(logs)]), structure)
    groups, extent = grouped((), structure), Extent()
    data = bundles[1].data
    if most:
        with GeneratedCalls(
            *rules, paired, whole, allowed=known.allowed, most=most, engine_timeout=engine_timeout
        ) as generated:
            advance = None if progress is None else lambda more: progress("generated", more)
            differences = generated.comparison.differences(shown.asked(generated.calls()), advance)
            groups = grouped(shown.differing(differences), structure)
            extent, data = generated.extent, generated.data
    calls = [*shown.differed, *shown.others, *map(canonical, known.allowed[:_LISTED])]
    difference = BundleDiff(
        old=bundles[0],
        new=bundles[1],
        names=(str(old), str(new)),
        structure=structure,
        known=KnownCalls(
            scenarios=sum(len(suite.scenarios) for suite in suites),
            logged=sum(len(log.requests) for log in logs),
            skipped=sum(log.skipped for log in logs),
            calls=known.count,
            groups=known_groups,
        ),
        generated=groups,
        extent=extent,
        not_shown=not_shown(*rules, data, list(dict.fromkeys(calls))) if calls else (),
    )
    documents = {document_digest(document): document for made in made_up() for document in made}
    documents |= {name: manifest.document for name, manifest in whole.items()}
    # Where a bundle has a root of its own, a suite's data does not count.
    stated = {root: value for suite in suites[:1] for root, value in suite.data.items() if root not in data}
    before, after = (directory_for_entries(bundle) | stated for bundle in bundles)
    with Comparison(
        *bundles, manifests=documents, old_data=before, new_data=after, engine_timeout=engine_timeout
    ) as comparison:
        return replace(difference, review=review(rules, difference, suites, comparison.decide))


class _ShownCalls:
    """The calls that may show what changed rules do, as the new bundle is asked them.

    Attributes:
        differed: some of each difference; others: the first that were generated for tools of the bundles.
    """

    def __init__(self) -> None:
        self.differed: list[bytes] = []
        self.others: list[bytes] = []
        self._counts: Counter[tuple[DecisionChange, str, Any]] = Counter()

    def asked(self, calls: Iterable[ComparedCall]) -> Iterator[ComparedCall]:
        """Yield the calls, and note the first."""
        for call in calls:
            if call.known_tool and len(self.others) < _LISTED:
                self.others.append(call.new)
            yield call

    def differing(self, differences: Iterable[Difference]) -> Iterator[Difference]:
        """Yield the differences, and note some of each kind."""
        for difference in differences:
            # Several changed rules may make the same difference: what else the calls have in common tells them apart.
            call = difference.call
            alike = difference.change, call.tool, call.variant[:-1]
            self._counts[alike] += 1
            if not call.plan and self._counts[alike] <= _OF_EACH and len(self.differed) < _LISTED:
                self.differed.append(call.new)
            yield difference


class _KnownCalls:
    """Decides the known calls by both bundles.

    Attributes:
        count: how many were decided; allowed: those that both allow, as the new bundle is asked them.
    """

    def __init__(
        self,
        old: Bundle,
        new: Bundle,
        manifests: Manifests,
        whole: Mapping[str, EffectiveManifest],
        progress: Progress,
        *,
        engine_timeout: float,
    ) -> None:
        self.count = 0
        self.allowed: list[Any] = []
        self._bundles, self._manifests, self._progress = (old, new), manifests, progress
        self._engine_timeout = engine_timeout
        documents = {**{name: manifest.document for name, manifest in whole.items()}, **manifests.old, **manifests.new}
        self._entries = {
            (name, tool): entry
            for name, document in documents.items()
            for tool, entry in document.get("tools", {}).items()
        }

    def scenarios(self, suites: Sequence[Suite]) -> Iterator[Difference]:
        """Yield the calls of scenarios that are decided differently."""
        for alike in _by_data(suites):
            documents = {suite.manifest.digest: suite.manifest.document for suite in alike}
            # Where a bundle has a root of its own, the suite's data does not count.
            taken = {root for bundle in self._bundles for root in bundle.data}
            data = {root: value for root, value in alike[0].data.items() if root not in taken}
            with Comparison(
                *self._bundles,
                manifests=documents,
                old_data=data,
                new_data=data,
                engine_timeout=self._engine_timeout,
            ) as comparison:
                calls = scenario_calls(alike, comparison.engines, self._manifests, self._entries)
                yield from self._decided(comparison, calls, "scenarios")

    def logged(self, logs: Sequence[DecisionLog]) -> Iterator[Difference]:
        """Yield the calls of logs that are decided differently."""
        if logs:
            with Comparison(*self._bundles, engine_timeout=self._engine_timeout) as comparison:
                for log in logs:
                    calls = log_calls(log, self._manifests, self._entries)
                    yield from self._decided(comparison, calls, "logs")

    def _decided(self, comparison: Comparison, calls: Iterable[ComparedCall], stage: str) -> Iterator[Difference]:
        for call in calls:
            old, new = comparison.decide(call)
            self.count += 1
            if self._progress is not None:
                self._progress(stage, 1)
            if not call.plan and old.verdict is new.verdict is Verdict.ALLOW:
                self.allowed.append(orjson.loads(call.new))
            change = change_of(old, new)
            if change is not None:
                yield Difference(call, change, old, new)


def _by_data(suites: Sequence[Suite]) -> list[list[Suite]]:
    groups: dict[str, list[Suite]] = {}
    for suite in suites:
        groups.setdefault(digest(canonical(dict(suite.data))), []).append(suite)
    return list(groups.values())
