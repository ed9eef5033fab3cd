"""What came of shadowing, in exact counts; and which differences are logged, so that none of them floods the log."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pdp.engine.shadow.difference import bounded_text, loosening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.decision import Decision, Verdict
    from pdp.engine.shadow.difference import Difference

GROUPS: Final = 1000
"""How many groups of differences are told apart for each pair. Those of further groups are counted as `ungrouped`."""

LINES: Final = 60
"""How many lines are logged a minute, beside the first ones of groups."""

FIRST_LINES: Final = 200
"""How many lines are logged a minute for differences that are the first of their group."""

PAIRS: Final = 8
"""How many pairs of bundles are kept apart: those that came last."""

_WINDOW: Final = 60.0


@dataclass(frozen=True, slots=True)
class DifferenceGroup:
    """Differences that have all of this in common; the attributes are those of `Difference`.

    Attributes:
        count: how many there are.
    """

    kind: str
    document: str
    tool: str | None
    verdict: Verdict
    shadow_verdict: Verdict
    codes: tuple[str, ...]
    shadow_codes: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class BundlePair:
    """Two bundles that decided the same requests.

    Attributes:
        revision: of the engine's bundle; None where the policy names none.
        release: likewise.
        shadow_revision: of the shadow's bundle.
        shadow_release: likewise.
        compared: how many requests.
        differing: how many of them with a difference.
        groups: these, by class, tool and codes: what the shadow loosens first, then the largest.
        ungrouped: differences beyond the first 1000 groups.
    """

    revision: str | None
    release: int | None
    shadow_revision: str | None
    shadow_release: int | None
    compared: int
    differing: int
    groups: tuple[DifferenceGroup, ...]
    ungrouped: int


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """What came of shadowing so far, in this process. `decided` is the sum of `compared`, `failed`, `shadow_failed`,
    `dropped` and `waiting`; `compared` is that of `same` and `differing`.

    Attributes:
        decided: how often the engine was asked for a decision, on a request or a plan.
        compared: how often both gave one.
        same: how often with the same verdict, reason codes and obligations.
        differing: the others, by class (`Difference.kind`).
        failed: how often the engine gave no decision, by code; the shadow is not asked then. `cancelled`: whoever asked
            was cancelled or interrupted before there was one.
        shadow_failed: how often the shadow gave none, by code.
        dropped: how often the shadow was not asked, as it is too slow, or closed.
        waiting: how often it has yet to be asked, or has not answered yet.
        pairs: by which two bundles, and what differed between these; the last pair last, at most 8.
    """  # noqa: D205 - one sentence more than a line holds

    decided: int
    compared: int
    same: int
    differing: Mapping[str, int]
    failed: Mapping[str, int]
    shadow_failed: Mapping[str, int]
    dropped: int
    waiting: int
    pairs: tuple[BundlePair, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain JSON."""
        return {
            "decided": self.decided,
            "compared": self.compared,
            "same": self.same,
            "differing": dict(self.differing),
            "failed": dict(self.failed),
            "shadow_failed": dict(self.shadow_failed),
            "dropped": self.dropped,
            "waiting": self.waiting,
            "pairs": [asdict(pair) for pair in self.pairs],
        }


_Group = tuple[str, str, "str | None", "Verdict", "Verdict", tuple[str, ...], tuple[str, ...]]
_Pair = tuple["str | None", "int | None", "str | None", "int | None"]


class _PairRecord:
    """What was counted for one pair of bundles."""

    def __init__(self) -> None:
        self.compared = 0
        self.ungrouped = 0
        self.groups: Counter[_Group] = Counter()

    def count(self, difference: Difference) -> bool:
        """Count one more, and return whether it is the first of its group."""
        group = (
            difference.kind,
            difference.document,
            difference.tool,
            difference.verdict,
            difference.shadow_verdict,
            difference.codes,
            difference.shadow_codes,
        )
        if group not in self.groups and len(self.groups) >= GROUPS:
            self.ungrouped += 1
            return False
        self.groups[group] += 1
        return self.groups[group] == 1

    def counts(self, pair: _Pair) -> BundlePair:
        groups = [DifferenceGroup(*group, count) for group, count in self.groups.items()]
        groups.sort(key=_most_dangerous_first)
        differing = self.groups.total() + self.ungrouped
        return BundlePair(*pair, self.compared, differing, tuple(groups), self.ungrouped)


class ShadowRecord:
    """Counts. Not safe for threads: whoever shares it holds a lock.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.dropped = 0
        self._same = 0
        self._differing: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._shadow_failed: Counter[str] = Counter()
        self._pairs: OrderedDict[_Pair, _PairRecord] = OrderedDict()
        self._failing: str | None = None
        self._window = clock()
        self._lines: Counter[bool] = Counter()
        self._left_out = 0

    def failed(self, code: str) -> None:
        """Count that the engine gave no decision."""
        self._failed[code] += 1

    def shadow_failed(self, code: str) -> int | None:
        """Count that the shadow gave none, and return whether to log it, as `differs` does.

        That is the case for the first of several in a row with one code.
        """
        self._shadow_failed[code] += 1
        known, self._failing = self._failing == code, code
        return None if known else self._line()

    def compared(self, decision: Decision, shadow: Decision, difference: Difference | None) -> int | None:
        """Count two decisions on one request.

        Returns:
            None when nothing has to be logged; else how many lines were left out since the last one.
        """
        self._failing = None
        pair = self._pair(decision, shadow)
        pair.compared += 1
        if difference is None:
            self._same += 1
            return None
        self._differing[difference.kind] += 1
        return self._line(first=pair.count(difference))

    def counts(self, waiting: int) -> ShadowCounts:
        """Return all counts; `waiting` are those that are neither compared nor anything else yet."""
        compared = self._same + self._differing.total()
        settled = compared + self._failed.total() + self._shadow_failed.total() + self.dropped
        return ShadowCounts(
            decided=settled + waiting,
            compared=compared,
            same=self._same,
            differing=MappingProxyType(dict(self._differing)),
            failed=MappingProxyType(dict(self._failed)),
            shadow_failed=MappingProxyType(dict(self._shadow_failed)),
            dropped=self.dropped,
            waiting=waiting,
            pairs=tuple(record.counts(pair) for pair, record in self._pairs.items()),
        )

    def _pair(self, decision: Decision, shadow: Decision) -> _PairRecord:
        pair = (
            bounded_text(decision.bundle_revision),
            decision.release,
            bounded_text(shadow.bundle_revision),
            shadow.release,
        )
        record = self._pairs.get(pair)
        if record is None:
            record = self._pairs[pair] = _PairRecord()
        self._pairs.move_to_end(pair)
        if len(self._pairs) > PAIRS:
            self._pairs.popitem(last=False)
        return record

    def _line(self, *, first: bool = False) -> int | None:
        now = self._clock()
        if now - self._window >= _WINDOW:
            self._window = now
            self._lines.clear()
        if self._lines[first] >= (FIRST_LINES if first else LINES):
            self._left_out += 1
            return None
        self._lines[first] += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def _most_dangerous_first(group: DifferenceGroup) -> tuple[int, int, str, str, str, tuple[str, ...], tuple[str, ...]]:
    towards_allow = loosening(group.verdict, group.shadow_verdict)
    return -towards_allow, -group.count, group.kind, group.document, group.tool or "", group.codes, group.shadow_codes
