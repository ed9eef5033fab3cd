"""Estimate the maximum cost of validating a value, because a validation cannot be interrupted.

The cost unit is one subschema that checks one value. The costs of subschemas that check the same value are added. Of
the subschemas that check a member or item, only the most expensive counts. A recursive reference counts once per
value, because the validator caches its result. Each byte of a text costs the number of pattern positions that can match
at the same time: one in a prefix such as `^[A-Z]{2}-[0-9]{1,12}`, after that all characters of the expanded pattern.
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
"""The maximum cost of validating one value, which takes about 25 ms."""

_MOST_VISITS: Final = 4096
_DEEPEST: Final = 128
_BYTES_A_UNIT: Final = 8
_OF_UNIQUE: Final = 4
_OF_FRACTION: Final = 30
_HINT: Final = "use fewer branches and references, or split the tool into several tools"
_OF_FORMAT: Final = 4
_OF_PATTERN: Final = 4
_OF_FORMATS: Final = {"idn-hostname": 12, "regex": 20}
_ENDLESS: Final = "JSON Schema: the schema recurses without end, or is nested too deep"
_IN_PLACE: Final = ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
# In the first group, at most one keyword applies to a given member or item, so only the largest cost counts. In the
# second group, all costs are added.
_MEMBERS: Final = (("additionalProperties", "properties"), ("patternProperties", "propertyNames", _UNEVALUATED[1]))
_ITEMS: Final = (("prefixItems",), ("contains", "items", _UNEVALUATED[0]))
_NOT_PLAIN: Final = frozenset(("$ref", *_IN_PLACE, *_MEMBERS[1], "uniqueItems"))
_TOKEN: Final = re.compile(
    r"\\[pPx]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|\((?:\?[^:)]*:?)?|.", re.DOTALL
)
_LETTER: Final = r"(?:\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\[\\])*\]|[^\\()|*+?{}\[\]^$])"
_BEGINNING: Final = re.compile(rf"\^(?:{_LETTER}(?:\{{\d+\}})?+(?![*+?{{]))*+(?:{_LETTER}(?:[*+?]|\{{\d+,\d*\}}))?")


class _ValueWork(NamedTuple):
    """The maximum cost of validating one value: the number of schemas that check it, and the characters in patterns."""

    visits: int = 0
    letters: int = 0


class SchemaCost:
    """The cost of a valid schema. Raises `UsageError` if it nests too deep, recurses endlessly or is too expensive.

    `recursive` maps the id of each schema with a recursive `$ref` to the target. Validating a value of at most
    `free_bytes` bytes costs at most a fourth of `MAX_COST`.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._depths: dict[int, float] = {}
        self._open: set[int] = set()
        self._known: dict[tuple[int, bool], _ValueWork] = {}
        self.recursive: dict[int, Any] = {}
        try:
            self._work(schema)
        except RecursionError:
            raise UsageError(_ENDLESS, hint=_HINT) from None
        # Each recursive part checks a value only once, regardless of the path on which the part was reached.
        self._repeated = _sum(*(self._work(target, total=True) for target in self.recursive.values()))
        visits, letters = _sum(self._work(schema), self._repeated)
        if visits > _MOST_VISITS:
            raise UsageError(f"JSON Schema: checks one value more than {_MOST_VISITS} times", hint=_HINT)
        self.free_bytes = MAX_COST * _BYTES_A_UNIT // 4 // (visits * _BYTES_A_UNIT // 2 + letters + 1)

    def of(self, value: Any) -> int:
        """Return the maximum cost of validating a value, in units."""
        return self._cost(value, self._schema)

    def _cost(self, value: Any, schema: Any) -> int:
        visits, letters = _sum(self._work(schema), self._repeated)
        body = orjson.dumps(value)
        cost = letters * len(body) // _BYTES_A_UNIT
        # Separators are counted first. Because texts may also contain separators, the values are counted exactly if the
        # result depends on it.
        most = visits * (1 + body.count(b",") + body.count(b"[") + body.count(b"{"))
        cost += most if cost + most <= MAX_COST else visits * _values(value)
        if cost <= MAX_COST or not isinstance(value, dict) or not schema or not schema.keys().isdisjoint(_NOT_PLAIN):
            return cost
        # Each member has its own schema, so an expensive member does not make the others expensive.
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        return _weight(schema) + sum(self._cost(part, named.get(name, others)) for name, part in value.items())

    def _work(self, schema: Any, *, total: bool = False) -> _ValueWork:
        """Return the maximum cost for one value (with `total`, plus all values inside it), without recursive parts."""
        if not isinstance(schema, dict) or not schema:
            return _ValueWork()
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
            # `unevaluated...` keywords evaluate each branch a second time, so the cost doubles.
            times = 1 if schema.keys().isdisjoint(_UNEVALUATED) else 2
            own = _ValueWork(_weight(schema), _letters(schema))
            # `uniqueItems` compares items with each other; in a recursive schema, this happens once per nesting level.
            unique = _ValueWork(_OF_UNIQUE * (MAX_DEPTH if total else 1) if schema.get("uniqueItems") else 0)
            self._known[key] = _sum(widest(own, *inside), unique, *beside * times)
            self._open.discard(id(schema))
        return self._known[key]

    def _leads_back(self, schema: dict[str, Any], part: Any) -> bool:
        if id(part) in self._open:
            self.recursive[id(schema)] = part
        return self.recursive.get(id(schema)) is part and part is not None

    def _beside(self, schema: Mapping[str, Any]) -> list[Any]:
        target = resolve(self._schema, schema["$ref"]) if isinstance(schema.get("$ref"), str) else None
        return [*_parts(schema, _IN_PLACE), target]

    def _depth(self, schema: Any) -> float:
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._depths:
            self._depths[id(schema)] = math.inf
            self._depths[id(schema)] = 1 + max(map(self._depth, self._beside(schema)))
        return self._depths[id(schema)]


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _sum(*works: _ValueWork) -> _ValueWork:
    return _ValueWork(sum(work.visits for work in works), sum(work.letters for work in works))


def _most(*works: _ValueWork) -> _ValueWork:
    return _ValueWork(max((work.visits for work in works), default=0), max((work.letters for work in works), default=0))


def _parts(schema: Mapping[str, Any], keys: Iterable[str]) -> Iterator[Any]:
    for key in keys:
        part = schema.get(key)
        if isinstance(part, dict) and key in SCHEMA_MAPS:
            part = list(part.values())
        yield from part if isinstance(part, list) else (part,)


def _weight(schema: Mapping[str, Any]) -> int:
    """Return the cost of a schema's own keywords for one value, mainly of property names and constants."""
    names = [list(schema.get(key, ())) for key in ("dependentSchemas", "properties", "required")]
    weight = (
        min(1, len(schema.keys() - {"$ref", *_IN_PLACE}))
        + orjson.dumps([*names, schema.get("dependentRequired")]).count(b",") // 4
    )
    constants = [*schema.get("enum", ()), schema.get("const")]
    if not all(isinstance(value, str | int | None) for value in constants):
        # The validator looks up plain constants in a table, and compares all other constants one by one.
        text = orjson.dumps(constants)
        weight += text.count(b",") * (_OF_FRACTION if b"." in text else 1)
    step = schema.get("multipleOf", 1)
    # The validator divides fractions exactly, digit by digit, so their cost depends on the number of digits.
    return weight if step % 1 == 0 else weight + _OF_FRACTION + abs(round(math.log10(step)))


def _letters(schema: Mapping[str, Any]) -> int:
    patterns = [*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())]
    of_format = _OF_FORMATS.get(schema["format"], _OF_FORMAT) if "format" in schema else 0
    return sum(map(_at_once, patterns)) + of_format


def _at_once(pattern: str) -> int:
    """Return an upper bound for the number of positions of a regular expression that can match at the same time."""
    beginning = None if "|" in pattern else _BEGINNING.match(pattern)
    return 1 + _positions(pattern[beginning.end() :]) if beginning else _OF_PATTERN + _positions(pattern)


def _positions(pattern: str) -> int:
    """Return the number of characters and character classes in a regular expression, with repetitions expanded."""
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
