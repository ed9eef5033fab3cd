"""How much work it is, at most, to check a value against a schema: bounded before, since nobody can interrupt it.

The unit is one schema that looks at one value. A schema counts as the parts that look at the same value together, and
as the most that look at something inside of it; so the count is never too low, and needs no value. A reference that
leads to what it stands in counts once for each value, since the validator remembers how it ended there. Texts cost as
many steps for each byte as a pattern may be at letters at once: that is what a linear engine needs at worst. It is one
in a beginning such as `^[A-Z]{2}-[0-9]{1,12}`, where the byte says at which letter it is; what follows counts with all
its letters, its counted repetitions written out.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from pdp.errors import UsageError
from pdp.json import MAX_DEPTH
from pdp.manifest.schema.references import SCHEMA_MAPS, resolve

MAX_COST: Final = 250_000
"""Most work for one value; some 25 ms."""

_MOST_VISITS: Final = 4096
_DEEPEST: Final = 128
_BYTES_A_UNIT: Final = 8
_OF_UNIQUE: Final = 4
_OF_FRACTION: Final = 30
_HINT: Final = "use fewer branches and repeated references, or a schema for each of several tools"
_OF_FORMAT: Final = 4
_OF_PATTERN: Final = 4
_OF_FORMATS: Final = {"idn-hostname": 12, "regex": 20}
_ENDLESS: Final = "JSON Schema: refers to itself without end, or nests too deep"
_IN_PLACE: Final = ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
# Of what the first keywords name one looks at a value; of what the others state, each.
_MEMBERS: Final = (("additionalProperties", "properties"), ("patternProperties", "propertyNames", _UNEVALUATED[1]))
_ITEMS: Final = (("prefixItems",), ("contains", "items", _UNEVALUATED[0]))
_NOT_PLAIN: Final = frozenset(("$ref", *_IN_PLACE, *_MEMBERS[1], "uniqueItems"))
_TOKEN: Final = re.compile(
    r"\\[pPx]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|\((?:\?[^:)]*:?)?|.", re.DOTALL
)
_LETTER: Final = r"(?:\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\[\\])*\]|[^\\()|*+?{}\[\]^$])"
_BEGINNING: Final = re.compile(rf"\^(?:{_LETTER}(?:\{{\d+\}})?+(?![*+?{{]))*+(?:{_LETTER}(?:[*+?]|\{{\d+,\d*\}}))?")


class _Work(NamedTuple):
    """What looks at one place, at most: so many schemas, and patterns of so many letters."""

    visits: int = 0
    letters: int = 0


class SchemaCost:
    """What a schema that has no fault costs; safe to share.

    Attributes:
        recursive: what each reference leads to that stands in it, by the identity of the schema that refers.
        free_bytes: a value of at most so many bytes never costs more than a fourth of what is admitted.

    UsageError: it may look at one value too often, nests too deep, or refers to itself without end.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._depths: dict[int, float] = {}
        self._open: set[int] = set()
        self._known: dict[tuple[int, bool], _Work] = {}
        self.recursive: dict[int, Any] = {}
        try:
            self._work(schema)
        except RecursionError:
            raise UsageError(_ENDLESS, hint=_HINT) from None
        # Each part of what is repeated looks at one value once, whichever value around it led there.
        self._repeated = _sum(*(self._work(target, total=True) for target in self.recursive.values()))
        visits, letters = _sum(self._work(schema), self._repeated)
        if visits > _MOST_VISITS:
            raise UsageError(f"JSON Schema: looks at one value more than {_MOST_VISITS} times", hint=_HINT)
        self.free_bytes = MAX_COST * _BYTES_A_UNIT // 4 // (visits * _BYTES_A_UNIT // 2 + letters + 1)

    def of(self, value: Any) -> int:
        """Return how many units the check of a value takes at most."""
        return self._cost(value, self._schema)

    def _cost(self, value: Any, schema: Any) -> int:
        visits, letters = _sum(self._work(schema), self._repeated)
        body = orjson.dumps(value)
        cost = letters * len(body) // _BYTES_A_UNIT
        # Texts may have separators as well: values are counted only where that matters.
        most = visits * (1 + body.count(b",") + body.count(b"[") + body.count(b"{"))
        cost += most if cost + most <= MAX_COST else visits * _values(value)
        if cost <= MAX_COST or not isinstance(value, dict) or not schema or not schema.keys().isdisjoint(_NOT_PLAIN):
            return cost
        # Each member has one schema: what one of them costs does not count for all.
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        return _weight(schema) + sum(self._cost(part, named.get(name, others)) for name, part in value.items())

    def _work(self, schema: Any, *, total: bool = False) -> _Work:
        """Return what looks at one value at most, or all that looks at any; what is recursive left aside."""
        if not isinstance(schema, dict) or not schema:
            return _Work()
        key = (id(schema), total)
        if key not in self._known:
            if len(self._open) > _DEEPEST or self._depth(schema) > _DEEPEST:
                raise UsageError(_ENDLESS, hint=_HINT)
            self._open.add(id(schema))
            widest = _sum if total else _most
            beside = [
                self._work(part, total=total) for part in self._beside(schema) if not self._leads_back(schema, part)
            ]
            inside = [
                _sum(
                    widest(*(self._work(part, total=total) for part in _parts(schema, one_of))),
                    *(self._work(part, total=total) for part in _parts(schema, all_of)),
                )
                for one_of, all_of in (_MEMBERS, _ITEMS)
            ]
            # What no branch has looked at is known only when each is asked once more.
            times = 1 if schema.keys().isdisjoint(_UNEVALUATED) else 2
            own = _Work(_weight(schema), _letters(schema))
            # Items are compared with each other; where that is repeated, all of them once more at each depth.
            unique = _Work(_OF_UNIQUE * (MAX_DEPTH if total else 1) if schema.get("uniqueItems") else 0)
            self._known[key] = _sum(widest(own, *inside), unique, *beside * times)
            self._open.discard(id(schema))
        return self._known[key]

    def _leads_back(self, schema: dict[str, Any], part: Any) -> bool:
        if id(part) in self._open:
            self.recursive[id(schema)] = part
        return self.recursive.get(id(schema)) is part and part is not None

    def _beside(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return what else looks at the same value."""
        target = resolve(self._schema, schema["$ref"]) if isinstance(schema.get("$ref"), str) else None
        return [*_parts(schema, _IN_PLACE), target]

    def _depth(self, schema: Any) -> float:
        """Return how many schemas lead from one to another that looks at the same value; infinite for a circle."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._depths:
            self._depths[id(schema)] = math.inf
            self._depths[id(schema)] = 1 + max(map(self._depth, self._beside(schema)))
        return self._depths[id(schema)]


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _sum(*works: _Work) -> _Work:
    return _Work(sum(work.visits for work in works), sum(work.letters for work in works))


def _most(*works: _Work) -> _Work:
    return _Work(max((work.visits for work in works), default=0), max((work.letters for work in works), default=0))


def _parts(schema: Mapping[str, Any], keys: Iterable[str]) -> Iterator[Any]:
    for key in keys:
        part = schema.get(key)
        if isinstance(part, dict) and key in SCHEMA_MAPS:
            part = list(part.values())
        yield from part if isinstance(part, list) else (part,)


def _weight(schema: Mapping[str, Any]) -> int:
    """Return how long a schema looks at one value, its parts left aside: mostly at names and constants."""
    names = [list(schema.get(key, ())) for key in ("dependentSchemas", "properties", "required")]
    weight = (
        min(1, len(schema.keys() - {"$ref", *_IN_PLACE}))
        + orjson.dumps([*names, schema.get("dependentRequired")]).count(b",") // 4
    )
    constants = [*schema.get("enum", ()), schema.get("const")]
    if not all(isinstance(value, str | int | None) for value in constants):
        # Of plain constants the validator has a table; it compares the others, and fractions digit by digit.
        text = orjson.dumps(constants)
        weight += text.count(b",") * (_OF_FRACTION if b"." in text else 1)
    step = schema.get("multipleOf", 1)
    # Fractions are divided exactly, by as many digits as they have.
    return weight if step % 1 == 0 else weight + _OF_FRACTION + abs(round(math.log10(step)))


def _letters(schema: Mapping[str, Any]) -> int:
    patterns = [*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())]
    of_format = _OF_FORMATS.get(schema["format"], _OF_FORMAT) if "format" in schema else 0
    return sum(map(_at_once, patterns)) + of_format


def _at_once(pattern: str) -> int:
    """Return at how many letters a regular expression may be at once, or more."""
    beginning = None if "|" in pattern else _BEGINNING.match(pattern)
    return 1 + _positions(pattern[beginning.end() :]) if beginning else _OF_PATTERN + _positions(pattern)


def _positions(pattern: str) -> int:
    """Return how many letters and classes a regular expression has, its counted repetitions written out."""
    sizes, last = [0], 0
    for match in _TOKEN.finditer(pattern):
        letter = match[0]
        if letter.startswith("("):
            sizes.append(0)
        elif letter == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif match[1]:
            times = max(int(match[1]), int(match[2] or 0))
            sizes[-1] += last * (times - 1)
            last *= times
        elif letter not in "|*+?^$":
            last = 1
            sizes[-1] += 1
    return sum(sizes)
