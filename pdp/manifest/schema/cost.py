"""How much work it is, at most, to check a value against a schema: counted before, since nobody can interrupt it.

The unit is one schema that looks at one value. What several schemas say of one place is counted together, along
references and branches; the validator remembers how a recursive branch ended, so that one counts once. Texts cost as
many steps for each byte as a pattern has letters, its counted repetitions written out: that is what a linear engine
needs at worst.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from pdp.errors import UsageError
from pdp.manifest.schema.references import resolve, subschemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_COST: Final = 50_000
"""Most work for one value; some 10 ms."""

_MOST_VISITS: Final = 4096
_MOST_STEPS: Final = 200_000
_DEEPEST_IN_PLACE: Final = 64
_DEEPEST_VALUE: Final = 32
_MOST_REFINED: Final = 5_000
_REFINED_ABOVE: Final = MAX_COST // 256
_BYTES_A_UNIT: Final = 8
_OF_FORMAT: Final = 4
_OF_UNIQUE: Final = 4
_OF_FRACTION: Final = 30
_HINT: Final = "use fewer branches and repeated references, or a schema for each of several tools"
_ALWAYS: Final = ("allOf", "dependentSchemas", "else", "then")
_BRANCHES: Final = ("anyOf", "if", "not", "oneOf")
_MEMBERS: Final = ("patternProperties", "propertyNames", "unevaluatedProperties")
_ITEMS: Final = ("contains", "items", "unevaluatedItems")
_TOKEN: Final = re.compile(
    r"\\[pPx]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|\((?:\?[^:)]*:?)?|.", re.DOTALL
)

_Parts = dict[tuple[int, bool], tuple[dict[str, Any], int]]
"""The schemas that look at one place, how often each: by identity, and whether they do so within a branch."""


class _Location:
    """One place of values: what looks at it and at what is in it."""

    __slots__ = ("inside", "items", "other", "text", "unique", "visits", "worst_text", "worst_visits")

    def __init__(self, parts: _Parts) -> None:
        self.visits = sum(count * _weight(part) for part, count in parts.values())
        self.text = sum(count * _text_weight(part) for part, count in parts.values())
        self.unique = _OF_UNIQUE * sum(count for part, count in parts.values() if part.get("uniqueItems"))
        self.worst_visits, self.worst_text = self.visits + self.unique, self.text
        self.inside: dict[str | int, _Location | None] = {}
        self.other: _Location | None = None
        self.items: _Location | None = None

    def widen(self) -> bool:
        """Take what is inside into the worst; return whether that changed it."""
        inner = [place for place in (*self.inside.values(), self.other, self.items) if place is not None]
        visits = self.unique + max((self.visits, *(place.worst_visits for place in inner)))
        text = max((self.text, *(place.worst_text for place in inner)))
        changed = (visits, text) != (self.worst_visits, self.worst_text)
        self.worst_visits, self.worst_text = visits, text
        return changed


class SchemaCost:
    """What a schema costs; immutable and safe to share.

    Args:
        schema: it stands on its own, and has no fault.

    Raises:
        UsageError: it may look at one value too often, or has too many parts that look at the same value.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._steps = 0
        self._recursive = frozenset(_recursive(schema))
        self._locations: dict[frozenset[tuple[tuple[int, bool], int]], _Location] = {}
        self._pending: list[tuple[_Location, _Parts]] = []
        self._outermost = self._location([(schema, False, 1)])
        for location, parts in self._pending:
            self._enter(location, parts)
        self._pending.clear()
        for _ in range(_DEEPEST_VALUE):
            changed = [location.widen() for location in reversed(self._locations.values())]
            if not any(changed):
                break
        self._locations.clear()
        visits, text = (self._outermost.worst_visits, self._outermost.worst_text) if self._outermost else (0, 0)
        self.free_bytes = MAX_COST * _BYTES_A_UNIT // (visits * _BYTES_A_UNIT // 2 + text + 1)
        """A value of at most so many bytes is never too costly."""

    def of(self, value: Any) -> int:
        """Return how many units the check of a value takes at most; exact enough to compare with `MAX_COST`."""
        return _cost(value, self._outermost, [_MOST_REFINED])

    def _location(self, stated: list[tuple[Any, bool, int]]) -> _Location | None:
        parts: _Parts = {}
        for part, in_branch, count in stated:
            _add(parts, part, in_branch=in_branch, count=count)
        if not parts:
            return None
        key = frozenset((name, count) for name, (_, count) in parts.items())
        if key not in self._locations:
            whole = self._in_place(parts)
            self._locations[key] = _Location(whole)
            self._pending.append((self._locations[key], whole))
            if sum(count for _, count in whole.values()) > _MOST_VISITS:
                raise UsageError(f"JSON Schema: looks at one value more than {_MOST_VISITS} times", hint=_HINT)
        return self._locations[key]

    def _in_place(self, parts: _Parts) -> _Parts:
        """Return the parts, and what they apply to the same value."""
        whole: _Parts = {}
        level = parts
        for _ in range(_DEEPEST_IN_PLACE):
            following: _Parts = {}
            for (_, in_branch), (part, count) in level.items():
                self._step(1)
                _add(whole, part, in_branch=in_branch, count=count)
                # What no branch has looked at is known only when each is asked once more.
                repeated = 2 if part.keys() & {"unevaluatedItems", "unevaluatedProperties"} else 1
                for key, inner in _parts_of(part, (*_ALWAYS, *_BRANCHES)):
                    _add(following, inner, in_branch=in_branch or key in _BRANCHES, count=count * repeated)
                if isinstance(part.get("$ref"), str):
                    once = in_branch and id(part) in self._recursive
                    target = resolve(self._schema, part["$ref"])
                    _add(following, target, in_branch=in_branch, count=count * repeated, once=once)
            if not following:
                return whole
            level = following
        raise UsageError("JSON Schema: refers to itself without end, or nests too many branches", hint=_HINT)

    def _enter(self, location: _Location, parts: _Parts) -> None:
        """Find the places inside of a place."""
        members = _applied(parts, _MEMBERS)
        items = _applied(parts, _ITEMS)
        names = dict.fromkeys(name for part, _ in parts.values() for name in part.get("properties", ()))
        self._step(len(names) * len(parts))
        for name in names:
            own = [
                (part["properties"][name] if name in part.get("properties", ()) else part.get(_FURTHER), branch, count)
                for (_, branch), (part, count) in parts.items()
            ]
            location.inside[name] = self._location([*own, *members])
        location.other = self._location([*members, *_applied(parts, (_FURTHER,))])
        location.items = self._location(items)
        longest = max(len(part.get("prefixItems", ())) for part, _ in parts.values())
        self._step(longest * len(parts))
        for at in range(longest):
            first = [
                (part["prefixItems"][at], branch, count)
                for (_, branch), (part, count) in parts.items()
                if at < len(part.get("prefixItems", ()))
            ]
            location.inside[at] = self._location([*first, *items])

    def _step(self, count: int) -> None:
        self._steps += count
        if self._steps > _MOST_STEPS:
            raise UsageError("JSON Schema: too many of its parts look at the same values", hint=_HINT)


_FURTHER: Final = "additionalProperties"


def _add(parts: _Parts, part: Any, *, in_branch: bool, count: int, once: bool = False) -> None:
    if isinstance(part, dict) and part:
        key = (id(part), in_branch)
        known = parts[key][1] if key in parts else 0
        parts[key] = (part, max(known, 1) if once else known + count)


def _parts_of(schema: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        value = schema.get(key)
        if isinstance(value, dict) and key in ("dependentSchemas", "patternProperties"):
            value = list(value.values())
        yield from ((key, part) for part in (value if isinstance(value, list) else (value,)))


def _applied(parts: _Parts, keys: tuple[str, ...]) -> list[tuple[Any, bool, int]]:
    return [
        (inner, branch or key == "contains", count)
        for (_, branch), (part, count) in parts.items()
        for key, inner in _parts_of(part, keys)
    ]


def _recursive(schema: dict[str, Any]) -> Iterator[int]:
    """Yield the identity of each schema whose reference leads to what it stands in."""
    for place, part in subschemas(schema):
        if isinstance(part.get("$ref"), str):
            at = "/".join(("#", *(str(step).replace("~", "~0").replace("/", "~1") for step in place)))
            if f"{at}/".startswith(f"{part['$ref']}/"):
                yield id(part)


def _weight(part: Mapping[str, Any]) -> int:
    """Return how long a schema looks at one value, its parts left aside: mostly at names and constants."""
    names = (part.get("properties", ()), part.get("required", ()), part.get("dependentSchemas", ()))
    weight = 1 + sum(map(len, names)) // 4 + sum(map(len, part.get("dependentRequired", {}).values()))
    constants = [*part.get("enum", ()), part.get("const")]
    if not all(isinstance(value, str | None) for value in constants):
        weight += orjson.dumps(constants).count(b",")
    step = part.get("multipleOf", 1)
    # Fractions are divided exactly, by as many digits as they have.
    return weight if step % 1 == 0 else weight + _OF_FRACTION + abs(round(math.log10(step)))


def _text_weight(part: Mapping[str, Any]) -> int:
    patterns = [*part.get("patternProperties", ()), *([part["pattern"]] if "pattern" in part else ())]
    return sum(4 + positions(pattern) for pattern in patterns) + (_OF_FORMAT if "format" in part else 0)


def positions(pattern: str) -> int:
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


def _cost(value: Any, at: _Location | None, left: list[int]) -> int:
    """Return what a value costs: by its size, and where that is too much, by what is in it."""
    if at is None:
        return 0
    body = orjson.dumps(value)
    values = body.count(b",") + body.count(b"[") + body.count(b"{") + 1 if isinstance(value, dict | list) else 1
    worst = at.worst_visits * values + len(body) * at.worst_text // _BYTES_A_UNIT
    if worst <= _REFINED_ABOVE or not isinstance(value, dict | list) or len(value) > left[0]:
        return worst
    left[0] -= len(value)
    own = at.visits + at.unique * values
    if isinstance(value, dict):
        own += sum(map(len, value)) * max(at.text, at.other.text if at.other else 0) // _BYTES_A_UNIT
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    other = at.other if isinstance(value, dict) else at.items
    return own + sum(_cost(part, at.inside.get(name, other), left) for name, part in inner)
