"""What policies read of a request beyond what every concern does, and what they may compare it with.

Read from the text of the modules of both bundles: constants in the modules that read an attribute, and, since a policy
may compare with data, the values under `settings`; of numbers, those just below, at and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdp.harness.mutation.perturbing import GONE, at
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
_WORDS: Final = 10
_NUMBERS: Final = 12
_MOST: Final = 48
_ATTRIBUTES: Final = 24


class Constants:
    """The attributes that the policies read, and values for each.

    Args:
        modules: the texts of the modules of both bundles.
        settings: the data under `settings`, of both.
    """

    def __init__(self, modules: Iterable[str], settings: Sequence[Any]) -> None:
        texts = list(dict.fromkeys(modules))
        self._settings = vocabulary((), settings)
        self._read: dict[Way, Vocabulary] = {}
        for text in texts:
            words = vocabulary([text])
            for way in words.attributes:
                if way not in _WHOLE and not any(way[: len(known)] == known for known in _KNOWN):
                    self._read[way] = _joined(self._read.get(way), words)
        self.every = vocabulary(texts, settings)

    @property
    def attributes(self) -> tuple[Way, ...]:
        """What the policies read beyond the attributes that every concern has in common."""
        return tuple(sorted(self._read, key=str)[:_ATTRIBUTES])

    def values(self, entry: Entry, base: Mapping[str, Any]) -> Iterator[tuple[Way, list[Worded]]]:
        """Yield each attribute with its departures; those of an argument's schema among them."""
        limited = {argument for _, argument in entry.limits()}
        schema = entry.declared.schema_ if entry.declared else {}
        properties = schema.get("properties")
        bounds = {
            ("context", "arguments", name): tuple(_bounds(each))
            for name, each in (properties.items() if isinstance(properties, dict) else ())
            if isinstance(each, dict)
        }
        ways = [*self.attributes, *(way for way, found in bounds.items() if found and way not in self._read)]
        for way in ways:
            words = _joined(self._read.get(way), self._settings)
            values = (*bounds.get(way, ()), *_candidates(words, missing=way[-1] not in limited))
            current = at(base, way)
            others = (value for value in values if value is not current and value != current)
            yield way, put(way, others, _MOST)


def _candidates(words: Vocabulary, *, missing: bool) -> Iterator[Any]:
    if missing:
        yield GONE
    yield from words.strings[:_WORDS]
    yield from Vocabulary((), (), words.numbers[:_NUMBERS]).boundaries()
    yield "grid.foreign"
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
