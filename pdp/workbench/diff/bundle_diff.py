"""Compare the structure and the decisions of two bundles, and name each changed rule whose effect no call shows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from pdp.decision import Verdict
from pdp.engine.bundle.file import read_bundle
from pdp.errors import EngineTimeoutError
from pdp.json import canonical, digest
from pdp.opa.program import needed_opa
from pdp.workbench.diff.causes.attribution import Attribution
from pdp.workbench.diff.causes.changes import changes_between
from pdp.workbench.diff.causes.exercise import not_shown
from pdp.workbench.diff.causes.proofs import proofs_of, wider_calls
from pdp.workbench.diff.comparison import ComparedCall, Comparison, DecisionChange, Difference, change_of
from pdp.workbench.diff.generated import GeneratedCalls
from pdp.workbench.diff.groups import collected, grouped
from pdp.workbench.diff.known import DecisionLog, known_call, scenario_calls
from pdp.workbench.diff.policies import BundlePair
from pdp.workbench.diff.result import BundleDiff, KnownCalls
from pdp.workbench.diff.review import review
from pdp.workbench.diff.structure import structure_of
from pdp.workbench.engines import ENGINE_TIMEOUT, OPA_SHARE
from pdp.workbench.scenarios.files.suite import Suite

GENERATED: Final = 50_000

_LISTED: Final = 750
_SAMPLE: Final = 2000
"""How many calls are generated if all changes are proved to be equal."""

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
    """Compare two bundle files by the scenarios of `suites`, the requests of `logs`, and up to `most` generated calls.

    With `solved`, OPA computes the conditions of changed rules. This finds more differences and takes seconds per rule.
    `progress` is called with the number of calls that were decided since the previous `progress` call.
    """
    names = str(old), str(new)
    pair = BundlePair.of(needed_opa("comparing bundles"), read_bundle(old), read_bundle(new), names=names)
    structure = structure_of(pair)
    whole = {suite.manifest.digest: suite.manifest for suite in suites}
    beside = _shared_data(pair, suites[0]) if suites else {}
    decided = _DecidedCalls(progress)
    generated = GeneratedCalls(pair, whole, beside=beside, engine_timeout=engine_timeout)
    late = _Late()
    changes = changes_between(pair, structure)
    proofs = proofs_of(pair, changes)
    structure = replace(structure, proofs=proofs.answers)
    equal = structure.proved("equal")
    changes = tuple(change for change in changes if change.name not in equal or not any(change.rules))
    if structure.changes and not structure.effective:
        # Nothing can be decided differently, so a sample of the calls is enough.
        most, solved = min(most, _SAMPLE), False
    with (
        generated.comparison as comparison,
        Attribution(pair, generated.data, changes, timeout=OPA_SHARE * engine_timeout) as attribution,
    ):
        logged = (known_call(request, pair.manifests, source) for log in logs for source, request in log.requests)
        scenarios = _scenario_differences(pair, suites, decided, engine_timeout)
        from_logs = chain(scenarios, decided.known(comparison, logged))
        known_calls = collected(decided.noted(late.before("known calls", from_logs)))
        made = generated.calls(most, allowed=map(orjson.loads, decided.allowed), solved=solved) if most else ()
        differing = comparison.differences(decided.generated(made))
        generated_calls = list(decided.noted(late.before("generated calls", differing)))
        if most:
            with late.noted("calls of proofs"):
                proofs = proofs.searched(pair, decided.differing(), generated.data[1], OPA_SHARE * engine_timeout)
        structure = replace(structure, proofs=proofs.answers)
        generated_calls += late.before("calls of proofs", comparison.differences(wider_calls(pair, proofs)))
        if late.first is not None and not decided.count + generated.extent.requests:
            raise late.first
        known_groups, groups = grouped(
            known_calls,
            collected(generated_calls),
            structure=structure,
            decide=comparison.decide,
            attribute=attribution.causes,
        )
        hidden = not_shown(pair, attribution, decided.likely_to_show(), structure.settled)
    known = KnownCalls(
        scenarios=sum(len(suite.scenarios) for suite in suites),
        logged=sum(len(log.requests) for log in logs),
        skipped=sum(log.skipped for log in logs),
        calls=decided.count,
        groups=known_groups,
    )
    unfinished = (*late.unfinished, *attribution.unfinished)
    difference = BundleDiff(
        *pair.bundles, names, structure, known, groups, generated.extent, hidden,
        unfinished=unfinished, unproved=proofs.missing,
    )  # fmt: skip
    return replace(difference, review=review(pair, difference, changes, suites))


class _Late:
    """Notes the parts of a comparison that an engine did not finish in time, and keeps the earlier differences."""

    def __init__(self) -> None:
        self.first: EngineTimeoutError | None = None
        self.unfinished: list[str] = []

    def before(self, part: str, differences: Iterable[Difference]) -> Iterator[Difference]:
        with self.noted(part):
            yield from differences

    @contextmanager
    def noted(self, part: str) -> Iterator[None]:
        try:
            yield
        except EngineTimeoutError as error:
            self.first = self.first or error
            self.unfinished.append(f"{part}: {error.message}")


class _DecidedCalls:
    """Collects the number of known calls, the calls that both bundles allow, and calls to test changed rules with."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self.count = 0
        self.allowed: list[bytes] = []
        self._progress = progress
        self._differing: list[bytes] = []
        self._others: list[bytes] = []
        self._counts: Counter[tuple[DecisionChange, str, Any]] = Counter()

    def known(self, comparison: Comparison, calls: Iterable[ComparedCall]) -> Iterator[Difference]:
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
        """Yield generated calls, and keep some of them: calls of the bundles' tools, or else of synthetic tools."""
        synthetic: list[bytes] = []
        for call in calls:
            self._progress(1)
            noted = self._others if call.known_tool else synthetic
            if len(noted) < _LISTED:
                noted.append(call.new)
            yield call
        self._others = self._others or synthetic

    def noted(self, differences: Iterable[Difference]) -> Iterator[Difference]:
        for difference in differences:
            # Several changed rules may cause the same difference, so the variant of the call is part of the key.
            call = difference.call
            key = difference.change, call.tool, call.variant[:-1]
            self._counts[key] += 1
            if not call.plan and self._counts[key] <= _OF_EACH and len(self._differing) < _LISTED:
                self._differing.append(call.new)
            yield difference

    def likely_to_show(self) -> list[bytes]:
        """Return the kept calls as requests to the new bundle. Calls that the bundles decide differently come first."""
        return list(dict.fromkeys((*self._differing, *self._others, *self.allowed[:_LISTED])))

    def differing(self) -> list[bytes]:
        """Return the kept calls that the bundles decide differently, and calls that both allow."""
        return list(dict.fromkeys((*self._differing, *self.allowed[:_LISTED])))


def _scenario_differences(
    pair: BundlePair, suites: Sequence[Suite], decided: _DecidedCalls, engine_timeout: float
) -> Iterator[Difference]:
    groups: dict[str, list[Suite]] = {}
    for suite in suites:
        groups.setdefault(digest(canonical(dict(suite.data))), []).append(suite)
    for group in groups.values():
        documents = {suite.manifest.digest: suite.manifest.document for suite in group}
        data = _shared_data(pair, group[0])
        with Comparison(
            *pair.bundles, manifests=documents, old_data=data, new_data=data, engine_timeout=engine_timeout
        ) as comparison:
            yield from decided.known(comparison, scenario_calls(group, comparison.engines, pair.manifests))


def _shared_data(pair: BundlePair, suite: Suite) -> dict[str, Any]:
    taken = {root for bundle in pair.bundles for root in bundle.data}
    return {root: value for root, value in suite.data.items() if root not in taken}
