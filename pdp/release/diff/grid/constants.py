"""What policies read of a request beyond what every concern does, and what they may compare it with.

Read from the text of the modules of both bundles: constants in the modules that read an attribute, and, since a policy
may compare with data, the values under `settings`; of numbers, those just below, at and above.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pdp.harness.mutation.perturbing import GONE, at, changed
from pdp.harness.mutation.vocabulary import Vocabulary, vocabulary
from pdp.release.diff.grid.departures import put

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pdp.harness.mutation.vocabulary import Way
    from pdp.release.diff.grid.bases import Entry
    from pdp.release.diff.grid.departures import Worded

_KNOWN: Final = (
    ("subject", "id"), ("subject", "type"), ("subject", "properties", "scopes"),
    ("subject", "properties", "clearances"),
    ("subject", "properties", "limits"), ("subject", "properties", "entitlements"), ("subject", "properties", "act"),
    ("subject", "properties", "iss"), ("action",), ("resource",), ("context", "approval"), ("context", "purpose"),
    ("context", "call_digest"), ("context", "idempotency_key"), ("context", "agent"), ("steps",),
)  # fmt: skip
_WHOLE: Final = (("subject",), ("subject", "properties"), ("context",), ("context", "arguments"))
FILLER: Final = "grid.foreign"
"""A text that no policy knows."""

_ARGUMENTS: Final = ("context", "arguments")
_SAME: Final = 4
_WORDS: Final = 10
_NUMBERS: Final = 12
_MOST: Final = 48
_ATTRIBUTES: Final = 24


class Constants:
    """The attributes that the policies read, and values for each; those first that only one of the bundles has.

    Args:
        old, new: the texts of the modules of either bundle.
        old_settings, new_settings: the data under `settings`.
    """

    def __init__(self, old: Sequence[str], new: Sequence[str], old_settings: Any, new_settings: Any) -> None:
        one, other = (vocabulary((), [settings]) for settings in (old_settings, new_settings))
        self._settings = _first_what_differs(one, other)
        before, after = _read(old), _read(new)
        nothing = Vocabulary((), (), ())
        self._read: dict[Way, Vocabulary] = {
            way: _first_what_differs(before.get(way, nothing), after.get(way, nothing))
            for way in dict.fromkeys((*before, *after))
        }
        self.every = vocabulary(dict.fromkeys((*old, *new)), [old_settings, new_settings])

    @property
    def attributes(self) -> tuple[Way, ...]:
        """What the policies read beyond the attributes that every concern has in common."""
        return tuple(sorted(self._read, key=str)[:_ATTRIBUTES])

    def filled_in(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the request with some text in each argument that the policies read and it does not have."""
        missing = [way for way in self.attributes if way[:2] == _ARGUMENTS and at(request, way) is GONE]
        filled: dict[str, Any] = changed(request, *((way, FILLER) for way in missing))
        return filled

    def values(self, entry: Entry, base: Mapping[str, Any]) -> Iterator[tuple[Way, list[Worded]]]:
        """Yield each attribute with its departures; those of an argument's schema among them."""
        limited = {argument for _, argument in entry.limits()}
        schema = entry.declared.schema_ if entry.declared else {}
        properties = schema.get("properties")
        bounds: dict[Way, tuple[Any, ...]] = {
            ("context", "arguments", name): tuple(_bounds(each))
            for name, each in (properties.items() if isinstance(properties, dict) else ())
            if isinstance(each, dict)
        }
        ways = [*self.attributes, *(way for way, found in bounds.items() if found and way not in self._read)]
        for way in ways:
            words = _joined(self._read.get(way), self._settings)
            # One attribute may have to be what an argument is.
            same = (value for value in base["context"]["arguments"].values() if isinstance(value, str))
            candidates = _candidates(words, missing=way[-1] not in limited)
            values = (*bounds.get(way, ()), *islice(candidates, 3), *islice(same, _SAME), *candidates)
            current = at(base, way)
            others = (value for value in values if value is not current and value != current)
            yield way, put(way, others, _MOST)


def _read(texts: Iterable[str]) -> dict[Way, Vocabulary]:
    """Each attribute that is not every concern's, with the constants of the modules that read it."""
    found: dict[Way, Vocabulary] = {}
    for text in texts:
        words = vocabulary([text])
        for way in words.attributes:
            if way not in _WHOLE and not any(way[: len(known)] == known for known in _KNOWN):
                found[way] = _joined(found.get(way), words)
    return found


def _first_what_differs(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    """Join what either side has. Where a policy changed, a constant that came or went is where decisions change."""
    joined = _joined(new, old)
    strings = set(old.strings) ^ set(new.strings)
    numbers = set(old.numbers) ^ set(new.numbers)
    return Vocabulary(
        (),
        tuple(sorted(joined.strings, key=lambda each: each not in strings)),
        tuple(sorted(joined.numbers, key=lambda each: each not in numbers)),
    )


def _candidates(words: Vocabulary, *, missing: bool) -> Iterator[Any]:
    yield from words.strings[:2]
    if missing:
        yield GONE
    yield from words.strings[2:_WORDS]
    yield FILLER
    yield from Vocabulary((), (), words.numbers[:_NUMBERS]).boundaries()
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


def _joined(one: Vocabulary | None, other: Vocabulary) -> Vocabulary:
    if one is None:
        return other
    return Vocabulary(
        (),
        tuple(dict.fromkeys((*one.strings, *other.strings))),
        tuple(dict.fromkeys((*one.numbers, *other.numbers))),
    )
