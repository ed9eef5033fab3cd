"""The changes between two schemas of a tool, and the version bump that they need.

A request schema breaks callers if it accepts fewer values, and a response schema breaks readers if it allows more (tool
pattern library, 9.1: "breaking signature changes are major bumps"). Changed descriptions need a patch bump, and changes
whose effect is unknown a major bump.
"""

import logging
from collections import deque
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pdp.json import JsonValueError, check_json
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.references import referred
from pdp.manifest.schema.walk import Alternative, SchemaNode, argument_schemas, of_types, walk


class Bump(IntEnum):
    """The version bump that a change needs, from the smallest to the largest (Semantic Versioning 2.0.0)."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3

    @property
    def word(self) -> str:
        """The bump's name in messages, in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change at the dotted `path` of a tool's `request` or `response` schema, or of its `description`."""

    part: str
    path: str
    what: str
    bump: Bump


_log = logging.getLogger("pdp.pep")
_NOT_DECLARED: Final = "which the manifest does not state. Add it there as `default`"

DEFAULT: Final = "`default`"
"""The first word of messages about changed default values."""

_LOWER: Final = ("exclusiveMinimum", "minItems", "minLength", "minProperties", "minimum")
_UPPER: Final = ("exclusiveMaximum", "maxItems", "maxLength", "maxProperties", "maximum")
# Adding one of these keywords can only restrict a schema. For all other keywords the direction of the change is
# unknown.
_NARROWING: Final = frozenset((*_LOWER, *_UPPER, "format", "multipleOf", "pattern", "uniqueItems"))
_OPENNESS: Final = ("additionalProperties", "unevaluatedProperties")


def schema_changes(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, part: str) -> tuple[SchemaChange, ...]:
    """Return the changes between two self-contained schemas. None means that the tool has no schema."""
    if old == new:
        return ()
    if old is None or new is None:
        # Adding a schema breaks no caller, because callers could not rely on anything before. Removing it takes away
        # what they rely on.
        change = ("is stated", Bump.MINOR) if old is None else ("is no longer stated", Bump.MAJOR)
        return (SchemaChange(part, "", f"the {part}'s schema {change[0]}", change[1]),)
    changes = dict.fromkeys(_SchemaComparison(dict(old), dict(new), part).changes())
    # Only descriptions, examples or the order of members changed.
    return tuple(changes) or (SchemaChange(part, "", "text or spelling", Bump.PATCH),)


class _SchemaComparison:
    def __init__(self, old: dict[str, Any], new: dict[str, Any], part: str) -> None:
        self._old, self._new, self._part = old, new, part
        self._compared: set[tuple[int, int]] = set()
        # A more restrictive request schema breaks callers, and a less restrictive response schema breaks readers.
        self._narrower = Bump.MAJOR if part == "request" else Bump.MINOR
        self._wider = Bump.MINOR if part == "request" else Bump.MAJOR

    def changes(self) -> Iterator[SchemaChange]:
        """Yield the changes, outermost first. A definition is compared once, at the first path that refers to it."""
        pending = deque([("", walk(self._old), walk(self._new))])
        while pending:
            path, old, new = pending.popleft()
            if len(old.alternatives) == len(new.alternatives) == 1:
                pairs = [(old.alternatives[0], new.alternatives[0])]
            else:
                pairs, removed, added = _paired(old.alternatives, new.alternatives)
                if removed and added:
                    yield self._change(path, "its alternatives changed", Bump.MAJOR)
                elif removed or added:
                    words = "an alternative was removed" if removed else "an alternative was added"
                    yield self._change(path, words, self._narrower if removed else self._wider)
            for before, after in pairs:
                if (id(before), id(after)) in self._compared:
                    continue
                self._compared.add((id(before), id(after)))
                yield from self._type_changes(before, after, path)
                yield from self._member_changes(before, after, path)
                yield from self._constraint_changes(before, after, path)
                if self._part == "request":
                    yield from self._default_changes(before, after, path)
                pending += (
                    (f"{path}.{name}" if path else name, part, after.properties[name])
                    for name, part in before.properties.items()
                    if name in after.properties
                )
                if before.items is not None and after.items is not None:
                    pending.append((f"{path}[]", before.items, after.items))
                elif before.items is not after.items:
                    words, bump = (
                        ("got a type", self._narrower) if before.items is None else ("lost its type", self._wider)
                    )
                    yield self._change(f"{path}[]", words, bump)

    def _change(self, path: str, words: str, bump: Bump) -> SchemaChange:
        return SchemaChange(self._part, path, words, bump)

    def _type_changes(self, old: Alternative, new: Alternative, path: str) -> Iterator[SchemaChange]:
        if old.values is None and new.values is None:
            if old.types != new.types:
                narrower, wider = _admits(old.types, new.types), _admits(new.types, old.types)
                words = f"type {_named(old.types)} became {_named(new.types)}"
                yield self._change(path, words, self._bump(narrower=narrower, wider=wider))
            return
        if removed := _without(old, new):
            yield self._change(path, f"no longer {_listed(removed)}", self._narrower)
        if added := _without(new, old):
            yield self._change(path, f"now also {_listed(added)}", self._wider)

    def _bump(self, *, narrower: bool, wider: bool) -> Bump:
        if narrower == wider:
            return Bump.PATCH if narrower else Bump.MAJOR
        return self._narrower if narrower else self._wider

    def _member_changes(self, old: Alternative, new: Alternative, path: str) -> Iterator[SchemaChange]:
        for name in dict.fromkeys((*old.properties, *new.properties)):
            inner = f"{path}.{name}" if path else name
            required = name in new.required
            if name not in new.properties:
                # An open object still accepts a removed member, but the removal of an argument always counts.
                if not path or self._part != "request" or self._others(new, path) is not True:
                    yield self._change(inner, "was removed", Bump.MAJOR)
            elif name not in old.properties:
                # A new member of a result breaks no reader. A new argument breaks callers only if it is required.
                breaks = required and self._part == "request"
                words = f"is new{', and required' if required else ''}"
                yield self._change(inner, words, Bump.MAJOR if breaks else Bump.MINOR)
            elif required != (name in old.required):
                words = "became required" if required else "became optional"
                yield self._change(inner, words, self._narrower if required else self._wider)
        before, after = self._others(old, path), self._others(new, path)
        if before != after or not all(self._same(key, old, new) for key in _OPENNESS):
            words = f"additional members: {_admitted(before)} became {_admitted(after)}"
            narrower, wider = before is True or after is False, before is False or after is True
            yield self._change(path, words, self._bump(narrower=narrower, wider=wider))

    def _default_changes(self, old: Alternative, new: Alternative, path: str) -> Iterator[SchemaChange]:
        for name, node in old.properties.items():
            after = default_of(new.properties[name]) if name in new.properties and name not in old.required else None
            if after is not None and after != (before := default_of(node)):
                words = f"{DEFAULT} {_shown(before)} became {_shown(after)}"
                yield self._change(f"{path}.{name}" if path else name, words, Bump.PATCH)

    def _others(self, alternative: Alternative, path: str) -> Any:
        """Return the schema of additional members in the closed schema: True allows any, False allows none."""
        stated = [value for key in _OPENNESS for value in alternative.rest.get(key, ())]
        if stated:
            return stated[0] if len(stated) == 1 else tuple(stated)
        return self._part == "response" or bool(path and not alternative.properties)

    def _constraint_changes(self, old: Alternative, new: Alternative, path: str) -> Iterator[SchemaChange]:
        for key in sorted((old.rest.keys() | new.rest.keys()) - {"items", *_OPENNESS}):
            if self._same(key, old, new):
                continue
            before, after = _single(old.rest.get(key)), _single(new.rest.get(key))
            bump = Bump.MAJOR
            if key in _NARROWING and (before is None or after is None):
                bump = self._narrower if before is None else self._wider
            elif key in (*_LOWER, *_UPPER) and isinstance(before, int | float) and isinstance(after, int | float):
                bump = self._narrower if (after > before) == (key in _LOWER) else self._wider
            yield self._change(path, f"`{key}` {_shown(before)} became {_shown(after)}", bump)

    def _same(self, key: str, old: Alternative, new: Alternative) -> bool:
        values = old.rest.get(key, ())
        if values != new.rest.get(key, ()):
            return False
        parts = {"allOf": [{key: value} for value in values if isinstance(value, dict | list | str)]}
        return referred(parts, self._old) == referred(parts, self._new)


def _paired(
    old: tuple[Alternative, ...], new: tuple[Alternative, ...]
) -> tuple[list[tuple[Alternative, Alternative]], list[Alternative], list[Alternative]]:
    """Return pairs of alternatives with equal discriminator or type, then old and new alternatives without a pair."""
    unpaired: dict[Any, deque[Alternative]] = {}
    for alternative in new:
        unpaired.setdefault(_label(alternative), deque()).append(alternative)
    pairs, removed = [], []
    for alternative in old:
        if same := unpaired.get(_label(alternative)):
            pairs.append((alternative, same.popleft()))
        else:
            removed.append(alternative)
    return pairs, removed, [alternative for rest in unpaired.values() for alternative in rest]


def _label(alternative: Alternative) -> tuple[Any, ...]:
    constants: list[str] = []
    for name in sorted(alternative.required & alternative.properties.keys()):
        forms = alternative.properties[name].alternatives
        values = [value for form in forms for value in form.values or (None, None)]
        if len(values) == 1:
            constants.append(f"{name}={values[0]!r}")
    return alternative.kinds, *constants


def _single(values: tuple[Any, ...] | None) -> Any:
    return values[0] if values is not None and len(values) == 1 else values


def _admits(old: frozenset[str] | None, new: frozenset[str] | None) -> bool:
    if old is None:
        return True
    return new is not None and new <= (old | {"integer"} if "number" in old else old)


def _without(alternative: Alternative, other: Alternative) -> list[Any]:
    if alternative.values is None:
        return [...]
    admitted = of_types(alternative.values, other.types) if other.values is None else other.values
    return [value for value in alternative.values if value not in admitted]


def _listed(values: list[Any]) -> str:
    return "any value" if values == [...] else ", ".join(_shown(value) for value in values[:5])


def default_of(node: SchemaNode) -> Any:
    """Return the default that a schema states, or None."""
    return next((part["default"] for part in node.parts if isinstance(part, dict) and "default" in part), None)


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value!r:.40}"


def _admitted(others: Any) -> str:
    return "any" if others is True else "none" if others is False else _shown(others)


def _named(types: frozenset[str] | None) -> str:
    return "any" if types is None else " or ".join(sorted(types))


def drift(declared: Mapping[str, Any], real: Mapping[str, Any], taken: Container[str] = ()) -> list[str]:
    """Return a message for each relevant difference of a tool's real argument schema from its declared schema.

    The tool may accept additional values, because calls with these values are rejected. But its defaults must be equal
    (except those of `taken` arguments), because the policy does not see defaults that only the tool knows.
    """
    changes = schema_changes(declared, real, "request")
    return [
        f"{change.path or 'arguments'}: {change.what}"
        for change in changes
        if change.bump is Bump.MAJOR
        or change.what.startswith("is new")
        or (change.what.startswith(DEFAULT) and change.path not in taken)
    ]


def tool_defaults(name: str, declared: Mapping[str, Any], real: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's non-null defaults that the declared schema accepts. Log those that the schema does not state."""
    known, required = argument_schemas(declared), declared.get("required", ())
    defaults = {key: default_of(node) for key, node in argument_schemas(real).items() if key in known}
    defaults = {key: value for key, value in defaults.items() if value is not None and key not in required}
    taken: dict[str, Any] = {}
    for key, value in defaults.items():
        stated = default_of(known[key])
        with suppress(JsonValueError):
            check_json(value)
            admitted = compile_schema({"$defs": declared.get("$defs", {}), "allOf": [*known[key].parts]})
            if stated in (None, value) and admitted.is_valid(value):
                taken[key] = value
                if stated is None:
                    _log.warning("%s: argument %s defaults to %r, %s", name, key, value, _NOT_DECLARED)
    return taken
