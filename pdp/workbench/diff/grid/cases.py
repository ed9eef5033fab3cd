"""The grid: calls near one that has all it needs, for every tool, tier and effect class. The same in every run.

Base calls first, then one departure at a time, then pairs of them, tool by tool in turn, until there are as many calls
as were asked for; those first that depart in what a changed module reads. What there was no room for is counted.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Final

from pdp.decision import Verdict
from pdp.json import JsonValueError
from pdp.workbench.diff.comparison import ComparedCall
from pdp.workbench.diff.grid.axes import axes
from pdp.workbench.diff.grid.bases import base_request, valid_approval
from pdp.workbench.diff.grid.departures import dotted, said
from pdp.workbench.diff.grid.extent import Extent
from pdp.workbench.diff.grid.perturbing import GONE, at, changed, changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdp.workbench.diff.comparison import Comparison
    from pdp.workbench.diff.grid.constants import Constants
    from pdp.workbench.diff.grid.departures import Axis, Departure
    from pdp.workbench.diff.grid.extent import Subject
    from pdp.workbench.diff.grid.perturbing import Change
    from pdp.workbench.diff.grid.vocabulary import Way
    from pdp.workbench.diff.manifests import Manifests

_SETTLING: Final = 3
_ARGUMENTS: Final = ("context", "arguments")
_BRIEF: Final = ("approval", "argument amount", "scopes", "limits", "purpose")
_HOSTILE: Final = 1500
_FRESH_PAIRS: Final = 0.4
"""How much of the grid pairs may take that depart in what a changed module reads, before all the rest."""

_MIXED: Final = 2654435761
"""Knuth's multiplier: it spreads neighbours far apart."""


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
        sides: Manifests,
        duel: Comparison,
        clearances: Sequence[str],
        directory: Mapping[str, Any],
        constants: Constants,
        most: int,
    ) -> None:
        readings = constants.readings
        self.extent = Extent(dropped=readings.dropped, dropped_changed=readings.dropped_changed)
        self._subjects, self._sides, self._duel, self._most = subjects, sides, duel, most
        self._clearances, self._directory, self._constants = clearances, directory, constants
        self._seen: set[int] = set()

    def cases(self) -> Iterator[ComparedCall]:
        """Yield the calls."""
        near = [self._near(subject) for subject in self._subjects]
        for each in near:
            self._count(each)
        known = [each for each in near if each.subject.known_tool]
        made_up = [each for each in near if not each.subject.known_tool]
        taken = 0
        for name, stage, most in (
            ("single", self._bases(near), self._most),
            ("single", self._singles(known, fresh=True), self._most),
            ("single", self._singles(known), self._most),
            ("pairs", self._pairs(known, fresh=True), int(self._most * _FRESH_PAIRS)),
            ("single", self._singles(made_up), self._most),
            ("single", self._singles(made_up, fresh=True), self._most),
            ("hostile", self._hostile(made_up), self._most),
            ("pairs", self._pairs(near), self._most),
            ("hostile", self._hostile(known), self._most),
        ):
            for case in islice(self._unasked(stage), min(self._most - taken, most)):
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
            self.extent.never_allowed.append(subject.entry.tool)
        return _Near(subject, tuple(bases), self.axes(subject, first))

    def axes(self, subject: Subject, base: Mapping[str, Any]) -> list[Axis]:
        """Return the axes of a tool; of one that is tried briefly, those that matter to most rules."""
        found = axes(subject.entry, base, self._directory, self._constants, known_tool=subject.known_tool)
        return [axis[:2] for axis in found if axis[0].axis in _BRIEF] if subject.brief else found

    def _settled(self, subject: Subject, base: dict[str, Any]) -> tuple[tuple[Verdict, ...], dict[str, Any]]:
        """Give the call what custom concerns ask for, one attribute after the other, as far as that helps."""
        best, denials = base, self._denials(subject, base)
        given: dict[Way, Any] = {}
        for _ in range(_SETTLING if subject.known_tool else 1):
            if not denials[0] or subject.brief:
                break
            for _, values, _, _ in self._constants.values(subject.entry, best, known_tool=subject.known_tool):
                for _, applied in values:
                    # Only an argument may have to be absent: all else that a base call has, it needs.
                    if any(value is GONE and each[:2] != _ARGUMENTS for each, value in applied):
                        continue
                    other = changed(best, *applied)
                    if (found := self._denials(subject, other))[0] < denials[0]:
                        given |= {each: at(base, each) for each, _ in applied}
                        best, denials = other, found
                        break
                if not denials[0]:
                    break
        # What turned out not to be needed is taken back: a call that departs in it would not show as one that does.
        for way, before in given.items():
            other = changed(best, (way, before))
            if (found := self._denials(subject, other))[0] <= denials[0]:
                best, denials = other, found
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

    def _bases(self, near: Sequence[_Near]) -> Iterator[ComparedCall | None]:
        for each in near:
            for departed, base in each.bases:
                yield self._case(each.subject, base, departed)

    def _singles(self, near: Sequence[_Near], *, fresh: bool = False) -> Iterator[ComparedCall | None]:
        for each in near:
            for departed, base in each.bases:
                for axis in each.axes:
                    for departure in axis if axis[0].fresh is fresh else ():
                        yield self._departing(each.subject, base, (*departed, departure))

    def _pairs(self, near: Sequence[_Near], *, fresh: bool = False) -> Iterator[ComparedCall | None]:
        """Of each tool in turn, so that none takes all the room."""
        turns = [
            self._pairs_of(each.subject, departed, base, each.axes, fresh=fresh)
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
        self,
        subject: Subject,
        departed: tuple[Departure, ...],
        base: dict[str, Any],
        found: Iterable[Axis],
        *,
        fresh: bool,
    ) -> Iterator[ComparedCall | None]:
        # Mixed by what they say, so that a part is spread over all axes, and is nearly the same where an axis came.
        for pair in sorted(_pairs(found), key=_mixed):
            if fresh and not (pair[0].fresh or pair[1].fresh):
                continue
            yield self._departing(subject, base, (*departed, *pair))

    def _hostile(self, near: Sequence[_Near]) -> Iterator[ComparedCall | None]:
        for each in near:
            if not each.subject.hostile:
                continue
            departed, base = each.bases[-1]
            for way, value in islice(changes(base, self._constants.every), _HOSTILE):
                departure = (dotted(way), said(way, value))
                words = (*((one.axis, one.words) for one in departed), departure)
                yield self._case(each.subject, _changed(base, ((way, value),)), (), words)

    def _departing(
        self, subject: Subject, base: dict[str, Any], departures: tuple[Departure, ...]
    ) -> ComparedCall | None:
        applied = tuple(change for departure in departures for change in departure.changes)
        return self._case(subject, _changed(base, applied), departures)

    def _case(
        self,
        subject: Subject,
        request: Any,
        departures: tuple[Departure, ...],
        words: tuple[tuple[str, str], ...] | None = None,
    ) -> ComparedCall | None:
        try:
            old, new = self._sides.requests(request)
        except JsonValueError:
            return None
        return ComparedCall(
            tool=subject.entry.tool,
            kind=subject.entry.kind,
            variant=tuple((one.axis, one.words) for one in departures) if words is None else words,
            old=old,
            new=new,
            known_tool=subject.known_tool,
        )

    def _unasked(self, cases: Iterable[ComparedCall | None]) -> Iterator[ComparedCall]:
        for case in cases:
            if case is not None and (key := hash((case.old, case.new))) not in self._seen:
                self._seen.add(key)
                yield case


class _End:
    """Stands for a turn that is over."""


_END: Final = _End()


def _pairs(found: Iterable[Axis]) -> Iterator[tuple[Departure, Departure]]:
    for one, other in combinations(found, 2):
        yield from ((first, second) for first in one if first.paired for second in other if second.paired)


def _mixed(pair: tuple[Departure, Departure]) -> tuple[bool, int]:
    """A place in an order that has nothing to do with that of the axes, and is the same in every run.

    Before all others come the pairs of which changed modules read both.
    """
    one, other = (zlib.crc32(f"{each.axis}\0{each.words}".encode()) for each in pair)
    return not (pair[0].fresh and pair[1].fresh), (one * _MIXED ^ other) % 2**32 * _MIXED % 2**32


def _approved(subject: Subject, base: Mapping[str, Any], grid: Grid) -> tuple[Departure, ...]:
    """The departure that a valid approval is, for words."""
    return next((axis[:1] for axis in grid.axes(subject, base) if axis[0].axis == "approval"), ())


def _changed(body: Any, applied: Iterable[Change]) -> Any:
    return changed(body, *applied)
