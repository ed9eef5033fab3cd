"""What a JSON Schema comes to once its references and its `allOf` are put together: one view for each of its branches.

Two schemas are compared by these views (pdp/manifest/schema/shapes.py, pdp/manifest/schema/differences.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdp.manifest.schema.references import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BRANCHES: Final = ("anyOf", "oneOf")
_MOST_BRANCHES: Final = 32
_DEEPEST: Final = 16
_MOST_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class View:
    """One branch of a schema.

    Attributes:
        types: what it may be; None: anything. `integer` stands for itself, also beside `number`.
        values: the constants that it may be; None: any.
        properties, required, items: as in JSON Schema; `items` None: any. An item schema may be a boolean.
        rest: every other keyword that constrains, by its name; of a keyword that stands several times, a tuple.
        whole: False when the schema is too deep or has too many branches to be looked through.
    """

    types: frozenset[str] | None = None
    values: tuple[Any, ...] | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: Any = None
    rest: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True

    @property
    def kinds(self) -> frozenset[str] | None:
        """The types that it may be, also where only its constants tell."""
        if self.types is not None or self.values is None:
            return self.types
        return frozenset(_kind(value) for value in self.values)


_ANNOTATIONS: Final = frozenset(
    (
        "$comment", "$defs", "$schema", "default", "definitions", "deprecated", "description", "examples", "readOnly",
        "title", "writeOnly",
    )
)  # fmt: skip
_NOTHING: Final = View(types=frozenset())


def views(schema: Any, root: Mapping[str, Any]) -> tuple[View, ...]:
    """Return the branches of `schema`; `root` is the whole schema, where its references lead to.

    Nothing is admitted by an empty tuple, and anything by a view without types, values and rest.
    """
    return _views(schema, root, ())


def branches(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[View]:
    """Yield the branches of a schema, however many there are; one that is not whole where nobody can tell."""
    found = views(schema, root)
    if all(view.whole for view in found) or not isinstance(schema, dict) or depth > _MOST_STEPS:
        yield from found
        return
    key = next((key for key in ("$ref", *_BRANCHES) if key in schema), None)
    beside = {name: value for name, value in schema.items() if name != key}
    for one in (resolve(root, schema[key]),) if key == "$ref" else schema.get(key or "", ()):
        # What stands beside it holds as well.
        inner = {**one, "allOf": [*one.get("allOf", ()), beside]} if isinstance(one, dict) else one and beside
        yield from branches(inner, root, depth + 1)
    if key is None:
        yield from found


def _views(schema: Any, root: Mapping[str, Any], trail: tuple[str, ...]) -> tuple[View, ...]:
    if schema is True:
        return (View(),)
    if not isinstance(schema, dict):
        return ()
    found: tuple[View, ...] = (_own(schema),)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in trail or len(trail) > _DEEPEST:  # it leads back to itself
            return (View(whole=False),)
        found = _both(found, _views(resolve(root, reference), root, (*trail, reference)))
    for one in schema.get("allOf", ()):
        found = _both(found, _views(one, root, trail))
    for key in _BRANCHES:
        if key in schema:
            branches = tuple(view for one in schema[key] for view in _views(one, root, trail))
            found = _both(found, branches)
    if len(found) > _MOST_BRANCHES:
        return (View(whole=False),)
    return found


def _own(schema: dict[str, Any]) -> View:
    kinds = schema.get("type")
    values = (schema["const"],) if "const" in schema else None
    if isinstance(schema.get("enum"), list):
        values = tuple(value for value in schema["enum"] if values is None or value in values)
    taken = ("$ref", "allOf", *_BRANCHES, "type", "const", "enum", "properties", "required", "items")
    return View(
        types=None if kinds is None else frozenset((kinds,) if isinstance(kinds, str) else kinds),
        values=values,
        properties=schema.get("properties", {}),
        required=frozenset(schema.get("required", ())),
        items=schema.get("items"),
        rest={key: value for key, value in schema.items() if key not in taken and key not in _ANNOTATIONS},
    )


def _both(first: tuple[View, ...], second: tuple[View, ...]) -> tuple[View, ...]:
    if len(first) * len(second) > _MOST_BRANCHES:
        return (View(whole=False),)
    return tuple(joined for one in first for other in second if (joined := _joined(one, other)) is not _NOTHING)


def _joined(one: View, other: View) -> View:
    types = _common(one.types, other.types)
    if types is not None and not types:
        return _NOTHING
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = tuple(value for value in one.values if value in other.values)
    shared = one.properties.keys() & other.properties.keys()
    properties = {**one.properties, **other.properties}
    properties |= {name: _all_of(one.properties[name], other.properties[name]) for name in shared}
    rest = {**one.rest, **other.rest}
    rest |= {
        key: (one.rest[key], other.rest[key])
        for key in one.rest.keys() & other.rest.keys()
        if one.rest[key] != other.rest[key]
    }
    return View(
        types=types,
        values=values,
        properties=properties,
        required=one.required | other.required,
        items=one.items
        if other.items is None
        else other.items
        if one.items is None
        else _all_of(one.items, other.items),
        rest=rest,
        whole=one.whole and other.whole,
    )


def _all_of(one: Any, other: Any) -> Any:
    return one if one == other else {"allOf": [one, other]}


def _common(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one if other is None else other
    both = one & other
    if ("integer" in one and "number" in other) or ("number" in one and "integer" in other):
        both |= {"integer"}
    return both


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")
