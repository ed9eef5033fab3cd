"""What policies read of a request, with the values that are tried for each: constants of the modules that read it.

Where policies build on the data under `settings`, the values there are tried as well; of numbers, those just below, at
and above. What modules read that differ between the bundles comes first, with the constants that only one of them has.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pdp.workbench.diff.grid.departures import PAIRED, dotted, said
from pdp.workbench.diff.grid.perturbing import GONE, at, changed
from pdp.workbench.diff.grid.readings import Reading, Readings
from pdp.workbench.diff.grid.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.workbench.diff.grid.bases import Entry
    from pdp.workbench.diff.grid.departures import Worded
    from pdp.workbench.diff.grid.perturbing import Change
    from pdp.workbench.diff.grid.vocabulary import Way

FILLER: Final = "grid.foreign"
"""A text that no policy knows."""

_ARGUMENTS: Final = ("context", "arguments")
_PROPERTIES: Final = ("subject", "properties")
_ACT: Final = (*_PROPERTIES, "act")
_CLEARANCES: Final = (*_PROPERTIES, "clearances")
_MARKINGS: Final = ("resource", "properties", "markings")
_LISTS: Final = frozenset(
    ("scopes", "clearances", "roles", "markings", "corpora", "documents", "purposes", "groups")
)  # fmt: skip
_SAME: Final = 4
_WORDS: Final = 10
_NUMBERS: Final = 12
_MOST: Final = 48
_UNCHANGED: Final = 4
_PAIRED_NEWS: Final = 8


class Constants:
    """The attributes that the policies read, and values for each.

    Args:
        old, new: the texts of the modules of either bundle, by path.
        old_settings, new_settings: the data under `settings`.

    Attributes:
        readings: what the modules read.
        every: all words and numbers, of both bundles.
    """

    def __init__(self, old: Mapping[str, str], new: Mapping[str, str], old_settings: Any, new_settings: Any) -> None:
        self.readings = Readings(old, new, old_settings, new_settings)
        texts = dict.fromkeys((*old.values(), *new.values()))
        self.every = vocabulary(texts, [old_settings, new_settings])

    def filled_in(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request with some text in each argument that the policies read and it does not have."""
        ways = (one.way for one in self.readings.taken)
        missing = [way for way in ways if way[:2] == _ARGUMENTS and at(request, way) is GONE]
        filled: dict[str, Any] = changed(request, *((way, FILLER) for way in missing))
        return filled

    def values(
        self, entry: Entry, base: Mapping[str, Any], *, known_tool: bool
    ) -> Iterator[tuple[Way, list[Worded], int, bool]]:
        """Yield each attribute with its departures, those of an argument's schema among them.

        Args:
            entry: the tool.
            base: the call to depart from.
            known_tool: whether it is one of the bundles'; of made-up ones, less is tried.

        Yields:
            where it stands, the departures, how many of the first of them stand in pairs, and whether a module that
            differs reads it.
        """
        limited = {argument for _, argument in entry.limits()}
        schema = entry.declared.schema_ if entry.declared else {}
        properties = schema.get("properties")
        bounds: dict[Way, tuple[Any, ...]] = {
            ("context", "arguments", name): tuple(_bounds(each))
            for name, each in (properties.items() if isinstance(properties, dict) else ())
            if isinstance(each, dict)
        }
        ways = {one.way for one in self.readings.taken}
        nothing = Vocabulary((), (), ())
        found = [
            *self.readings.taken,
            *(Reading(way, nothing, frozenset(), changed=False, common=False, listed=False)
              for way, each in bounds.items() if each and way not in ways),
        ]  # fmt: skip
        for one in found:
            if one.common and not one.changed and not known_tool:
                continue
            current = at(base, one.way)
            if one.common or _is_list(one, current):
                candidates = _near(one, current)
            else:
                # One attribute may have to be what an argument is.
                same = (value for value in base["context"]["arguments"].values() if isinstance(value, str))
                plain = _candidates(one, missing=one.way[-1] not in limited)
                first = _PAIRED_NEWS if one.changed else 3
                candidates = iter((*bounds.get(one.way, ()), *islice(plain, first), *islice(same, _SAME), *plain))
            values = list(islice(_distinct(candidates, current), _MOST))
            fresh = sum(_is_new(value, one) for value in values[:_PAIRED_NEWS])
            paired = min(PAIRED + fresh, _PAIRED_NEWS) if one.changed else PAIRED
            worded = [(_words(one.way, value, current), _changes(one.way, value, base)) for value in values]
            yield one.way, worded, paired, one.changed


def _distinct(candidates: Iterator[Any], current: Any) -> Iterator[Any]:
    """Each value once, and not the one that is there."""
    seen = [current]
    for value in candidates:
        if not any(type(value) is type(each) and value == each for each in seen):
            seen.append(value)
            yield value


def _words(way: Way, value: Any, current: Any) -> str:
    if isinstance(value, list) and value and isinstance(current, list) and current and value[:-1] == current:
        return f"with {json.dumps(value[-1])} among {dotted(way)}"
    return said(way, value)


def _is_new(value: Any, one: Reading) -> bool:
    """Whether only one of the bundles has this constant; of a list, its last."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[-1], str) and value[-1] in one.news
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value in one.news


def _is_list(one: Reading, current: Any) -> bool:
    return isinstance(current, list) or one.listed or one.way[-1] in _LISTS


def _near(one: Reading, current: Any) -> Iterator[Any]:
    """Values of the kind that the attribute has: another text, a list with one more, a number beside the constants."""
    count = _WORDS if one.changed or not one.common else _UNCHANGED
    words = one.words.strings[:count]
    if _is_list(one, current):
        held = current if isinstance(current, list) else []
        yield from ([*held, word] for word in words[:_PAIRED_NEWS] if word not in held)
        yield []
        if not one.common:
            yield GONE
            yield [*held, FILLER]
            yield from words
            yield None
        return
    if one.way[:3] == (*_PROPERTIES, "limits"):
        if len(one.way) > 3:  # noqa: PLR2004 - one limit, and not all of them
            yield from replace(one.words, numbers=one.words.numbers[:_NUMBERS]).boundaries()
            yield GONE
        else:
            held_limits = current if isinstance(current, dict) else {}
            yield from ({**held_limits, word: number} for word in words for number in one.words.numbers[:2] or (1,))
        return
    if isinstance(current, dict):
        return
    yield from words
    if one.changed:
        yield FILLER
        yield GONE


def _changes(way: Way, value: Any, base: Mapping[str, Any]) -> tuple[Change, ...]:
    """What a value changes: with a marking goes the clearance, and an agent holds what the subject holds."""
    if way == _MARKINGS and isinstance(value, list):
        held = base["subject"]["properties"]["clearances"]
        return (way, value), (_CLEARANCES, [*held, *(each for each in value if each not in held)])
    if way[:3] == _ACT and at(base, _ACT) is GONE:
        subject = base["subject"]["properties"]
        kept = {key: subject[key] for key in ("scopes", "clearances", "limits", "entitlements") if key in subject}
        agent = {"sub": base["context"]["agent"] or "agent:acting", **kept, "purposes": [base["context"]["purpose"]]}
        return (_ACT, agent), (way, value)
    return ((way, value),)


def _candidates(one: Reading, *, missing: bool) -> Iterator[Any]:
    words = one.words
    fresh = [word for word in words.strings if word in one.news]
    first = min(max(2, len(fresh)), 4) if one.changed else 2
    numbers = replace(words, numbers=words.numbers[:_NUMBERS])
    new_numbers = replace(words, numbers=tuple(each for each in words.numbers if each in one.news)[:2])
    yield from words.strings[:first]
    if one.changed and new_numbers.numbers:
        yield from (value for value in new_numbers.boundaries() if value)
    if missing:
        yield GONE
    yield from words.strings[first:_WORDS]
    yield FILLER
    yield from numbers.boundaries()
    yield True
    yield False
    yield from ([word] for word in words.strings[:_WORDS])
    yield None


def _bounds(schema: Mapping[str, Any]) -> Iterator[Any]:
    numbers = [schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")]
    plain = tuple(each for each in numbers if isinstance(each, int | float) and not isinstance(each, bool))
    if plain:
        yield from Vocabulary((), (), plain).boundaries()
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list):
            yield from schema[name]
    if schema.get("type") == "boolean":
        yield from (True, False)
