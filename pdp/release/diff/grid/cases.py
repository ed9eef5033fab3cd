"""The grid: calls near one that has all it needs, for every tool, tier and effect class. The same in every run.

Base calls first, then one departure at a time, then pairs of them, tool by tool in turn, until there are as many calls
as were asked for. What there was no room for is counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Final

from pdp.canonical import JsonValueError
from pdp.decision import Verdict
from pdp.harness.mutation.perturbing import changed, changes
from pdp.release.diff.deciding import Case
from pdp.release.diff.grid.axes import axes
from pdp.release.diff.grid.bases import Entry, base_request, valid_approval
from pdp.release.diff.grid.departures import dotted, said

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdp.harness.mutation.perturbing import Change
    from pdp.release.diff.deciding import Duel
    from pdp.release.diff.grid.constants import Constants
    from pdp.release.diff.grid.departures import Axis, Departure
    from pdp.release.diff.pairing import Sides

PAIRED: Final = 4
"""How many values of an axis stand in pairs."""

_SETTLING: Final = 3
_BRIEF: Final = ("approval", "argument amount", "scopes", "limits", "purpose")
_HOSTILE: Final = 1500
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A tool that the grid is made for.

    Attributes:
        entry: the tool.
        known_tool: whether it is one of the bundles' manifests, and not made up.
        pairs, hostile, brief: as of `Probe`.
    """

    entry: Entry
    known_tool: bool
    pairs: bool = True
    hostile: bool = True
    brief: bool = False


@dataclass(slots=True)
class Extent:
    """What a grid covers, for the report.

    Attributes:
        tools: how many of the bundles' tools; probes: how many entries that were made up.
        single: calls with at most one departure; pairs, hostile: calls with two, and with mistyped parts.
        pairs_possible: how many pairs there are; some come to equal requests, which are asked once.
        cut: whether there was no room for all of them.
        axes: the matters in which calls depart, with how many values there are at most.
        unsettled: tools of which no call was found that is ALLOW or STEP_UP.
    """

    tools: int = 0
    probes: int = 0
    single: int = 0
    pairs: int = 0
    hostile: int = 0
    pairs_possible: int = 0
    cut: bool = False
    axes: dict[str, int] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many calls there are."""
        return self.single + self.pairs + self.hostile


@dataclass(frozen=True, slots=True)
class _Near:
    """A tool with the calls to depart from."""

    subject: Subject
    bases: tuple[tuple[tuple[Departure, ...], dict[str, Any]], ...]
    axes: list[Axis]


class Grid:
    """The calls of a grid, to be taken once.

    Args:
        subjects: the tools.
        sides: puts a request to either bundle.
        duel: decides, to find calls that have all they need.
        clearances: every marking that there is.
        directory: corpora, documents and entitlements, of both bundles and the grid's own.
        constants: what the policies read and compare with.
        most: how many calls there may be.

    Attributes:
        extent: what the calls that were taken cover.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        *,
        sides: Sides,
        duel: Duel,
        clearances: Sequence[str],
        directory: Mapping[str, Any],
        constants: Constants,
        most: int,
    ) -> None:
        self.extent = Extent()
        self._subjects, self._sides, self._duel, self._most = subjects, sides, duel, most
        self._clearances, self._directory, self._constants = clearances, directory, constants
        self._seen: set[int] = set()

    def cases(self) -> Iterator[Case]:
        """Yield the calls."""
        near = [self._near(subject) for subject in self._subjects]
        for each in near:
            self._count(each)
        taken = 0
        for name, stage in (("single", self._singles(near)), ("hostile", self._hostile(near, known=False)),
                            ("pairs", self._pairs(near)), ("hostile", self._hostile(near, known=True))):  # fmt: skip
            for case in islice(self._fresh(stage), self._most - taken):
                taken += 1
                setattr(self.extent, name, getattr(self.extent, name) + 1)
                yield case
        self.extent.cut = taken >= self._most

    def _near(self, subject: Subject) -> _Near:
        base = self._constants.filled_in(base_request(subject.entry, self._clearances, self._directory))
        settled, first = self._settled(subject, base)
        bases: list[tuple[tuple[Departure, ...], dict[str, Any]]] = [((), first)]
        if Verdict.STEP_UP in settled:
            # Behind a STEP_UP, what else would be denied or allowed shows only once it is approved.
            approved = changed(first, (("context", "approval"), valid_approval(subject.entry)))
            bases.append((_approved(subject, first, self), approved))
        if subject.known_tool and not {Verdict.ALLOW, Verdict.STEP_UP} & set(settled):
            self.extent.unsettled.append(subject.entry.tool)
        return _Near(subject, tuple(bases), self.axes(subject, first))

    def axes(self, subject: Subject, base: Mapping[str, Any]) -> list[Axis]:
        """Return the axes of a tool; of one that is tried briefly, those that matter to most rules."""
        found = axes(subject.entry, base, self._directory, self._constants)
        return [axis[:2] for axis in found if axis[0].axis in _BRIEF] if subject.brief else found

    def _settled(self, subject: Subject, base: dict[str, Any]) -> tuple[tuple[Verdict, ...], dict[str, Any]]:
        """Give the call what custom concerns ask for, one attribute after the other, as far as that helps."""
        best, denials = base, self._denials(subject, base)
        for _ in range(_SETTLING if subject.known_tool else 1):
            if not denials[0] or subject.brief:
                break
            for way, values in self._constants.values(subject.entry, best):
                for _, applied in values:
                    other = changed(best, *applied)
                    if (found := self._denials(subject, other))[0] < denials[0]:
                        best, denials = other, found
                        break
                if not denials[0] or way is None:
                    break
        return denials[1], best

    def _denials(self, subject: Subject, request: dict[str, Any]) -> tuple[int, tuple[Verdict, ...]]:
        case = self._case(subject, request, ())
        if case is None:
            return 1000, ()
        found = self._duel.decide(case)
        return sum(len(one.codes) for one in found if one.verdict is Verdict.DENY), tuple(one.verdict for one in found)

    def _count(self, near: _Near) -> None:
        self.extent.tools += near.subject.known_tool
        self.extent.probes += not near.subject.known_tool
        for axis in near.axes:
            self.extent.axes[axis[0].axis] = max(self.extent.axes.get(axis[0].axis, 0), len(axis))
        if near.subject.pairs:
            self.extent.pairs_possible += len(near.bases) * sum(1 for _ in _pairs(near.axes))

    def _singles(self, near: Sequence[_Near]) -> Iterator[Case | None]:
        for each in near:
            for departed, base in each.bases:
                yield self._case(each.subject, base, departed)
        for each in near:
            for departed, base in each.bases:
                for axis in each.axes:
                    for departure in axis:
                        yield self._departing(each.subject, base, (*departed, departure))

    def _pairs(self, near: Sequence[_Near]) -> Iterator[Case | None]:
        """Of each tool in turn, so that none takes all the room; shuffled, so that a part is spread over all axes."""
        turns = [
            self._pairs_of(each.subject, departed, base, each.axes)
            for each in near
            if each.subject.pairs
            for departed, base in each.bases
        ]
        while turns:
            still = []
            for turn in turns:
                case = next(turn, _END)
                if not isinstance(case, _End):
                    still.append(turn)
                    yield case
            turns = still

    def _pairs_of(
        self, subject: Subject, departed: tuple[Departure, ...], base: dict[str, Any], found: Iterable[Axis]
    ) -> Iterator[Case | None]:
        pairs = list(_pairs(found))
        random.Random(_SEED).shuffle(pairs)  # noqa: S311 - an order, and no secret
        for pair in pairs:
            yield self._departing(subject, base, (*departed, *pair))

    def _hostile(self, near: Sequence[_Near], *, known: bool) -> Iterator[Case | None]:
        for each in near:
            if not each.subject.hostile or each.subject.known_tool is not known:
                continue
            departed, base = each.bases[-1]
            for way, value in islice(changes(base, self._constants.every), _HOSTILE):
                departure = (dotted(way), said(way, value))
                words = (*((one.axis, one.words) for one in departed), departure)
                yield self._case(each.subject, _changed(base, ((way, value),)), (), words)

    def _departing(self, subject: Subject, base: dict[str, Any], departures: tuple[Departure, ...]) -> Case | None:
        applied = tuple(change for departure in departures for change in departure.changes)
        return self._case(subject, _changed(base, applied), departures)

    def _case(
        self,
        subject: Subject,
        request: Any,
        departures: tuple[Departure, ...],
        words: tuple[tuple[str, str], ...] | None = None,
    ) -> Case | None:
        try:
            old, new = self._sides.both(request)
        except JsonValueError:
            return None
        return Case(
            tool=subject.entry.tool,
            kind=subject.entry.kind,
            departures=tuple((one.axis, one.words) for one in departures) if words is None else words,
            old=old,
            new=new,
            known_tool=subject.known_tool,
        )

    def _fresh(self, cases: Iterable[Case | None]) -> Iterator[Case]:
        for case in cases:
            if case is not None and (key := hash((case.old, case.new))) not in self._seen:
                self._seen.add(key)
                yield case


class _End:
    """Stands for a turn that is over."""


_END: Final = _End()


def _pairs(found: Iterable[Axis]) -> Iterator[tuple[Departure, Departure]]:
    for one, other in combinations(found, 2):
        yield from ((first, second) for first in one[:PAIRED] for second in other[:PAIRED])


def _approved(subject: Subject, base: Mapping[str, Any], grid: Grid) -> tuple[Departure, ...]:
    """The departure that a valid approval is, for words."""
    return next((axis[:1] for axis in grid.axes(subject, base) if axis[0].axis == "approval"), ())


def _changed(body: Any, applied: Iterable[Change]) -> Any:
    return changed(body, *applied)
