"""One way in which a call departs from one that has all it needs, in words and as a change of the request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pdp.harness.mutation.perturbing import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdp.harness.mutation.perturbing import Change

_SHOWN: Final = 48

Worded = tuple[str, tuple["Change", ...]]
"""Words and changes, before it is known on which axis they stand."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One value on an axis: its words, as `without purpose`, and what it changes in the request."""

    axis: str
    words: str
    changes: tuple[Change, ...]


Axis = tuple[Departure, ...]
"""The departures in one matter, those first that say most: pairs are made of the first few."""


def axis_of(name: str, values: Sequence[Worded]) -> Axis:
    """Return an axis."""
    return tuple(Departure(name, words, changes) for words, changes in values)


def dotted(way: Sequence[str | int]) -> str:
    """Return a place in a request as people write it."""
    return ".".join(map(str, way))


def put(way: Sequence[str | int], values: Iterator[Any], most: int) -> list[Worded]:
    """Return departures that put values at one place of a request, worded by place and value; at most so many."""
    return [(said(way, value), ((tuple(way), value),)) for value in islice(values, most)]


def said(way: Sequence[str | int], value: Any) -> str:
    """Return words for a value at a place."""
    return f"without {dotted(way)}" if value is GONE else f"with {dotted(way)} {json.dumps(value)[:_SHOWN]}"
