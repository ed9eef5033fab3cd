"""The id of a difference: it names what was seen to change, so that an explanation of it holds for no more.

Beside verdicts, codes, tools and effect classes, what was seen are the values of those attributes that the changed
modules read, in the smallest calls that differ. A value stands for all that these modules cannot tell from it: a text
that they do not name is any other text, a number is its place among the numbers that they name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.json import canonical
from pdp.workbench.mutation.perturbing import GONE, at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pdp.workbench.diff.deciding import Case
    from pdp.workbench.diff.grid.readings import Reading, Readings
    from pdp.workbench.diff.judging import Change
    from pdp.workbench.opa.rules import RuleSite

_ID: Final = 12
_PASSING: Final = (
    ("context", "call_digest"), ("context", "time"), ("context", "run_id"), ("context", "request_id"),
    ("context", "approval"), ("action", "properties"),
)  # fmt: skip
"""What another run, or another release of the manifest, has otherwise."""


@dataclass(slots=True)
class Witnesses:
    """The calls of a group that no smaller one of the group is part of; known calls are all among them."""

    _least: dict[frozenset[tuple[str, str]], Case] = field(default_factory=dict)
    _hostile: dict[frozenset[tuple[str, str]], Case] = field(default_factory=dict)
    _known: list[Case] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Take a call in."""
        if case.source:
            self._known.append(case)
            return
        held = self._hostile if case.hostile else self._least
        if not any(part in held for part in _parts(case.departures)):
            held[frozenset(case.departures)] = case

    def cases(self) -> Iterator[Case]:
        """Yield them; those with something mistyped, missing or exchanged only where there is no other."""
        yield from self._known
        held = self._least or self._hostile
        for case in held.values():
            if not any(part in held for part in _parts(case.departures, whole=False)):
                yield case


class Identity:
    """Names differences.

    Args:
        readings: what the modules of both bundles read.
        sites: the rules of both bundles, by code and by id of an obligation.
    """

    def __init__(self, readings: Readings, sites: tuple[Mapping[str, tuple[RuleSite, ...]], ...]) -> None:
        self._readings, self._sites = readings, sites

    def of(self, change: Change, tools: Iterable[str], kinds: Iterable[str], witnesses: Witnesses) -> str:
        """Return the id: the same as long as change, tools, effect classes, and what was seen are the same."""
        names = (*change.gone, *change.come, *change.duties_gone, *change.duties_come, *change.details)
        paths = {site.module for side in self._sites for name in names for site in side.get(name, ())}
        read, vague = self._readings.behind(paths)
        seen = {canonical(each) for case in witnesses.cases() for each in self._seen(case, read, vague=vague)}
        return hashlib.sha256(
            canonical(
                [change.old, change.new, *map(list, (change.gone, change.come, change.duties_gone, change.duties_come,
                                                     change.details, tools, kinds)),
                 [each.decode() for each in sorted(seen)]]
            )
        ).hexdigest()[:_ID]  # fmt: skip

    def _seen(self, case: Case, read: tuple[Reading, ...], *, vague: bool) -> Iterator[Any]:
        # A plan is many calls: it is all that can be said of it.
        request = orjson.loads(case.new)
        if read and not case.plan:
            yield [[list(one.way), _told(at(request, one.way), one)] for one in read]
        if (read and not vague and not case.plan) or (case.source and not self._readings.changed):
            return
        if not case.source:
            yield sorted(axis for axis, _ in case.departures) if case.hostile else sorted(map(list, case.departures))
            return
        for way in _PASSING:
            holder = at(request, way[:-1])
            if isinstance(holder, dict):
                holder.pop(way[-1], None)
        yield request


def _parts(departures: tuple[tuple[str, str], ...], *, whole: bool = True) -> Iterator[frozenset[tuple[str, str]]]:
    sizes = range(len(departures) + whole)
    yield from map(frozenset, chain.from_iterable(combinations(departures, size) for size in sizes))


def _told(value: Any, reading: Reading) -> Any:
    """A value as the policies can tell it from others."""
    words, numbers = set(reading.words.strings), reading.words.numbers
    if value is GONE:
        return ["gone"]
    if isinstance(value, bool) or value is None:
        return ["value", value]
    if isinstance(value, str):
        return ["text", value] if value in words or not value else ["another text"]
    if isinstance(value, int | float):
        return ["number", sum(each < value for each in numbers), value in numbers]
    if isinstance(value, list):
        named = {each for each in value if isinstance(each, str)} & words
        return ["list", sorted(named)]
    return ["object", sorted(value.keys() & words)]
