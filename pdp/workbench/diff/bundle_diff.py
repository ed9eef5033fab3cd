"""Two bundles compared in three layers: structure, known calls, and generated calls that nobody wrote down.

What changed in rules and no call of the two layers shows is noted as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.decision import Verdict
from pdp.engine.bundle.file import read_bundle
from pdp.json import canonical, digest
from pdp.workbench.diff.comparison import ComparedCall, Comparison, DecisionChange, Difference, change_of
from pdp.workbench.diff.exercise import not_shown
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.groups import grouped
from pdp.workbench.diff.known import DecisionLog, known_call, scenario_calls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.result import BundleDiff, KnownCalls
from pdp.workbench.diff.review import review
from pdp.workbench.diff.structure import structure_of
from pdp.workbench.engines import ENGINE_TIMEOUT
from pdp.workbench.opa.program import needed_opa
from pdp.workbench.scenarios.files.suite import Suite

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
    solved: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    engine_timeout: float = ENGINE_TIMEOUT,
) -> BundleDiff:
    """Compare two bundle files: by the scenarios of `suites`, by `logs`, and by `most` generated calls at most.

    `solved`: ask OPA for what the changed rules ask for, which finds more and takes seconds a rule. `progress` is given
    how many more calls are decided.

    Raises:
        BundleError: a file is not a usable bundle.
        UsageError, EngineError: as of `EmbeddedEngine`; OPA is not here; tools files that cannot be read.
        EngineTimeoutError: no answer in time, which says nothing of a bundle.
    """
    names = str(old), str(new)
    pair = BundlePair.of(needed_opa("comparing bundles"), read_bundle(old), read_bundle(new), names=names)
    structure = structure_of(pair)
    whole = {suite.manifest.digest: suite.manifest for suite in suites}
    beside = _beside(pair, suites[0]) if suites else {}
    decided = _Decided(progress)
    generated = GeneratedCalls(pair, whole, beside=beside, engine_timeout=engine_timeout)
    with generated.comparison as comparison:
        logged = (known_call(request, pair.manifests, source) for log in logs for source, request in log.requests)
        of_scenarios = _of_scenarios(pair, suites, decided, engine_timeout)
        known_groups = grouped(
            decided.noted(chain(of_scenarios, decided.known(comparison, logged))), structure, comparison.decide
        )
        calls = generated.calls(most, allowed=map(orjson.loads, decided.allowed), solved=solved) if most else ()
        differences = decided.noted(comparison.differences(decided.generated(calls)))
        groups = grouped(differences, structure, comparison.decide)
    known = KnownCalls(
        scenarios=sum(len(suite.scenarios) for suite in suites),
        logged=sum(len(log.requests) for log in logs),
        skipped=sum(log.skipped for log in logs),
        calls=decided.count,
        groups=known_groups,
    )
    hidden = not_shown(pair, generated.data, decided.telling())
    difference = BundleDiff(*pair.bundles, names, structure, known, groups, generated.extent, hidden)
    return replace(difference, review=review(pair, difference, suites))


class _Decided:
    """Notes of the calls that are decided: how many were known, and which may show what changed rules do.

    Attributes:
        count: how many known calls there were; allowed: those that both bundles allow, as the new one is asked them.
    """

    def __init__(self, progress: Callable[[int], None]) -> None:
        self.count = 0
        self.allowed: list[bytes] = []
        self._progress = progress
        self._differing: list[bytes] = []
        self._others: list[bytes] = []
        self._counts: Counter[tuple[DecisionChange, str, Any]] = Counter()

    def known(self, comparison: Comparison, calls: Iterable[ComparedCall]) -> Iterator[Difference]:
        """Decide known calls, and yield those that are decided differently."""
        for call in calls:
            old, new = comparison.decide(call)
            self.count += 1
            self._progress(1)
            if not call.plan and old.verdict is new.verdict is Verdict.ALLOW:
                self.allowed.append(call.new)
            change = change_of(old, new)
            if change is not None:
                yield Difference(call, change, old, new)

    def generated(self, calls: Iterable[ComparedCall]) -> Iterator[ComparedCall]:
        """Yield generated calls, and note the first: those of the bundles' tools, where a bundle has any."""
        made_up: list[bytes] = []
        for call in calls:
            self._progress(1)
            noted = self._others if call.known_tool else made_up
            if len(noted) < _LISTED:
                noted.append(call.new)
            yield call
        self._others = self._others or made_up

    def noted(self, differences: Iterable[Difference]) -> Iterator[Difference]:
        for difference in differences:
            # Several changed rules may make the same difference: what else the calls have in common tells them apart.
            call = difference.call
            alike = difference.change, call.tool, call.variant[:-1]
            self._counts[alike] += 1
            if not call.plan and self._counts[alike] <= _OF_EACH and len(self._differing) < _LISTED:
                self._differing.append(call.new)
            yield difference

    def telling(self) -> list[bytes]:
        """Return the noted calls, as the new bundle is asked them, the likeliest to show something first."""
        return list(dict.fromkeys((*self._differing, *self._others, *self.allowed[:_LISTED])))


def _of_scenarios(
    pair: BundlePair, suites: Sequence[Suite], decided: _Decided, engine_timeout: float
) -> Iterator[Difference]:
    groups: dict[str, list[Suite]] = {}
    for suite in suites:
        groups.setdefault(digest(canonical(dict(suite.data))), []).append(suite)
    for alike in groups.values():
        documents = {suite.manifest.digest: suite.manifest.document for suite in alike}
        data = _beside(pair, alike[0])
        with Comparison(
            *pair.bundles, manifests=documents, old_data=data, new_data=data, engine_timeout=engine_timeout
        ) as comparison:
            yield from decided.known(comparison, scenario_calls(alike, comparison.engines, pair.manifests))


def _beside(pair: BundlePair, suite: Suite) -> dict[str, Any]:
    """A suite's data for both bundles: a root that one of them has of its own, the other one is not given."""
    taken = {root for bundle in pair.bundles for root in bundle.data}
    return {root: value for root, value in suite.data.items() if root not in taken}
