"""What changed between two schemas of a tool, and what that means for whoever relies on the old one.

Of a request, whatever the new schema no longer takes breaks callers; of a response, whatever it newly gives breaks
readers (tool pattern library, 9.1: "breaking signature changes are major bumps"). Text for people is a patch. Where it
cannot be told which way a change goes, it breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.schema.view import views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdp.manifest.schema.view import View


class Bump(IntEnum):
    """What a change asks of the version, least first (Semantic Versioning 2.0.0)."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change of a signature.

    Attributes:
        part: `request` or `response`; `description` for what the model is told beside its schema.
        path: the member, dotted, `[]` for items; empty for the whole.
        what: what changed, in words.
        bump: what it asks for.
    """

    part: str
    path: str
    what: str
    bump: Bump


_LOWER: Final = ("exclusiveMinimum", "minItems", "minLength", "minProperties", "minimum", "minContains")
_UPPER: Final = ("exclusiveMaximum", "maxItems", "maxLength", "maxProperties", "maximum", "maxContains")
_OPENNESS: Final = ("additionalProperties", "unevaluatedProperties")
_DEEPEST: Final = 12


def schema_changes(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, part: str) -> tuple[SchemaChange, ...]:
    """Return what changed between two schemas, which stand on their own; None: not stated.

    Args:
        old: the schema as it was.
        new: as it is.
        part: `request` or `response`.
    """
    if old == new:
        return ()
    if old is None or new is None:
        # Who had no schema could rely on nothing; who loses it can rely on nothing any more.
        change = ("is stated", Bump.MINOR) if old is None else ("is no longer stated", Bump.MAJOR)
        return (SchemaChange(part, "", f"the {part}'s schema {change[0]}", change[1]),)
    before, after = dict(old), dict(new)
    found = dict.fromkeys(_Comparison(before, after, part).changes(before, after, "", 0))
    # Something differs, and nothing that is checked: descriptions, examples, defaults, the order of members.
    return tuple(found) or (SchemaChange(part, "", "text or spelling", Bump.PATCH),)


class _Comparison:
    def __init__(self, old: dict[str, Any], new: dict[str, Any], part: str) -> None:
        self._old, self._new, self._part = old, new, part
        self._same_definitions = old.get("$defs") == new.get("$defs")
        self._compared: list[tuple[Any, Any]] = []
        # Narrowing a request breaks its callers, widening a response its readers.
        self._narrower = Bump.MAJOR if part == "request" else Bump.MINOR
        self._wider = Bump.MINOR if part == "request" else Bump.MAJOR

    def changes(self, old: Any, new: Any, path: str, depth: int) -> Iterator[SchemaChange]:
        """Yield what changed between two schemas of one member."""
        # What refers to itself has been compared by then.
        if (old == new and self._same_definitions) or (old, new) in self._compared:
            return
        self._compared.append((old, new))
        yield from self._changes(old, new, path, depth)
        self._compared.pop()

    def _changes(self, old: Any, new: Any, path: str, depth: int) -> Iterator[SchemaChange]:
        one, other = views(old, self._old), views(new, self._new)
        if len(one) == len(other) == 1 and one[0].whole and other[0].whole and depth <= _DEEPEST:
            yield from self._type_changes(one[0], other[0], path)
            yield from self._property_changes(one[0], other[0], path, depth)
            yield from self._item_changes(one[0], other[0], path, depth)
            yield from self._rest_changes(one[0], other[0], path)
        elif one != other:
            gone, come = [view for view in one if view not in other], [view for view in other if view not in one]
            if gone and come:
                yield self._change(path, "its alternatives changed", Bump.MAJOR)
            elif gone:
                yield self._change(path, "an alternative was removed", self._narrower)
            else:
                yield self._change(path, "an alternative was added", self._wider)

    def _change(self, path: str, what: str, bump: Bump) -> SchemaChange:
        return SchemaChange(self._part, path, what, bump)

    def _type_changes(self, old: View, new: View, path: str) -> Iterator[SchemaChange]:
        if old.types != new.types:
            narrower, wider = _admits(old.types, new.types), _admits(new.types, old.types)
            yield self._change(
                path, f"type {_named(old.types)} became {_named(new.types)}", self._way(narrower=narrower, wider=wider)
            )
        if old.values != new.values:
            gone = _without(old.values, new.values)
            come = _without(new.values, old.values)
            if gone:
                yield self._change(path, f"no longer {_listed(gone)}", self._narrower)
            if come:
                yield self._change(path, f"now also {_listed(come)}", self._wider)

    def _way(self, *, narrower: bool, wider: bool) -> Bump:
        if narrower == wider:
            return Bump.MAJOR if not narrower else Bump.PATCH
        return self._narrower if narrower else self._wider

    def _property_changes(self, old: View, new: View, path: str, depth: int) -> Iterator[SchemaChange]:
        for name in dict.fromkeys((*old.properties, *new.properties)):
            inner = f"{path}.{name}" if path else name
            required = name in new.required
            if name not in new.properties:
                yield self._change(inner, "was removed", Bump.MAJOR)
            elif name not in old.properties:
                # An answer's further member harms nobody; a further argument only who has to give it.
                breaks = required and self._part == "request"
                yield self._change(
                    inner, f"is new{', and required' if required else ''}", Bump.MAJOR if breaks else Bump.MINOR
                )
            else:
                if required != (name in old.required):
                    what = "became required" if required else "became optional"
                    yield self._change(inner, what, self._narrower if required else self._wider)
                yield from self.changes(old.properties[name], new.properties[name], inner, depth + 1)

    def _item_changes(self, old: View, new: View, path: str, depth: int) -> Iterator[SchemaChange]:
        if old.items is None and new.items is not None:
            yield self._change(f"{path}[]", "got a type", self._narrower)
        elif old.items is not None and new.items is None:
            yield self._change(f"{path}[]", "lost its type", self._wider)
        elif old.items is not None:
            yield from self.changes(old.items, new.items, f"{path}[]", depth + 1)

    def _rest_changes(self, old: View, new: View, path: str) -> Iterator[SchemaChange]:
        one, other = self._others(old, path), self._others(new, path)
        if one != other:
            what = f"further members: {_admitted(one)} became {_admitted(other)}"
            narrower, wider = one is True or other is False, one is False or other is True
            yield self._change(path, what, self._way(narrower=narrower, wider=wider))
        for key in sorted((old.rest.keys() | new.rest.keys()) - set(_OPENNESS)):
            one, other = old.rest.get(key), new.rest.get(key)
            if one == other:
                continue
            what = f"`{key}` {_shown(one)} became {_shown(other)}"
            if key in (*_LOWER, *_UPPER):
                yield self._change(path, what, self._bound(key, one, other))
            else:
                # A constraint that came narrows, one that went widens; one that changed may do either.
                yield self._change(
                    path, what, self._narrower if one is None else self._wider if other is None else Bump.MAJOR
                )

    def _others(self, view: View, path: str) -> Any:
        """Return what members that an object does not name may be, as `schema/compile.py` closes them."""
        stated = [view.rest[key] for key in _OPENNESS if key in view.rest]
        if stated:
            return stated[0]
        return self._part == "response" or bool(path and not view.properties)

    def _bound(self, key: str, one: Any, other: Any) -> Bump:
        if one is None or other is None:
            return self._narrower if one is None else self._wider
        if isinstance(one, tuple) or isinstance(other, tuple):
            return Bump.MAJOR
        return self._narrower if (other > one) == (key in _LOWER) else self._wider


def _admits(old: frozenset[str] | None, new: frozenset[str] | None) -> bool:
    """Return whether every type of `new` was one of `old`."""
    if old is None:
        return True
    return new is not None and new <= (old | {"integer"} if "number" in old else old)


def _without(values: tuple[Any, ...] | None, others: tuple[Any, ...] | None) -> list[Any]:
    """Return the values that are none of the others; None stands for any value."""
    if others is None:
        return []
    if values is None:
        return [...]
    return [value for value in values if value not in others]


def _listed(values: list[Any]) -> str:
    return "any value" if values == [...] else ", ".join(_shown(value) for value in values[:5])


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value!r:.40}"


def _admitted(others: Any) -> str:
    return "any" if others is True else "none" if others is False else _shown(others)


def _named(types: frozenset[str] | None) -> str:
    return "any" if types is None else " or ".join(sorted(types))
