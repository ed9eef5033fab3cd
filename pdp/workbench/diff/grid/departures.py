"""One way in which a call departs from one that has all it needs, in words and as a change of the request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.grid.perturbing import GONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdp.workbench.diff.grid.perturbing import Change

_SHOWN: Final = 48
PAIRED: Final = 4
"""How many values of an axis stand in pairs, if not more of them are news."""

Worded = tuple[str, tuple["Change", ...]]
"""Words and changes, before it is known on which axis they stand."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One value on an axis.

    Attributes:
        axis: the matter; words: the value in words, as `without purpose`.
        changes: what it changes in the request.
        paired: whether it stands in pairs.
        fresh: whether a module reads it that differs between the bundles, so that it is tried first.
    """

    axis: str
    words: str
    changes: tuple[Change, ...]
    paired: bool = False
    fresh: bool = False


Axis = tuple[Departure, ...]
"""The departures in one matter, those first that say most: pairs are made of the first few."""


def axis_of(name: str, values: Sequence[Worded], paired: int = PAIRED, *, fresh: bool = False) -> Axis:
    """Return an axis of which the first `paired` values stand in pairs."""
    return tuple(
        Departure(name, words, changes, paired=place < paired, fresh=fresh)
        for place, (words, changes) in enumerate(values)
    )


def dotted(way: Sequence[str | int]) -> str:
    """Return a place in a request as people write it."""
    return ".".join(map(str, way))


def said(way: Sequence[str | int], value: Any) -> str:
    """Return words for a value at a place."""
    return f"without {dotted(way)}" if value is GONE else f"with {dotted(way)} {json.dumps(value)[:_SHOWN]}"
