"""Read the values that a JSON Schema accepts. Loading, lint, pattern shapes and the diff read all schemas this way.

Unsupported keywords can only narrow a schema, so the result may accept more values than the schema, but never fewer.
The diff compares the unsupported keywords, which are in `Alternative.rest`, as text. Schemas that recurse endlessly,
nest too deep or have too many alternatives are not read. `prefixItems`, `patternProperties`, `unevaluatedItems` and
`unevaluatedProperties` are read as schemas of some items or members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from pdp.manifest.schema.references import resolve

_MOST_ALTERNATIVES: Final = 64
_MOST_NODES: Final = 20_000
_DEEPEST: Final = 64
BRANCHES: Final = frozenset(("$ref", "allOf", "anyOf", "oneOf"))
"""The keywords that combine schemas. Branches that were not read are in `Alternative.rest`."""

EVERY_TYPE: Final = frozenset(("array", "boolean", "null", "number", "object", "string"))
_READ: Final = BRANCHES | {"const", "enum", "properties", "required", "type"}
_ANNOTATIONS: Final = frozenset((
    "$comment", "$defs", "$schema", "default", "definitions", "deprecated", "description", "examples", "readOnly",
    "title", "writeOnly",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alternative:
    """Values that a schema accepts. `types` or `values` of None allow any; the type `number` includes `integer`.

    `conditional` has the members named in `if`, `then`, `else` or `dependentSchemas`. `items` is the schema of some
    items, `members` of members that are not named. `rest` has all other keywords with their values.
    """

    types: frozenset[str] | None = None
    values: tuple[Any, ...] | None = None
    properties: Mapping[str, SchemaNode] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    conditional: Mapping[str, SchemaNode] = field(default_factory=dict)
    items: SchemaNode | None = None
    members: SchemaNode | None = None
    rest: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str] | None:
        """The accepted JSON types, including those of constants; None means any type."""
        if self.types is not None or self.values is None:
            return self.types
        return frozenset(_kind(value) for value in self.values)


_ANYTHING: Final = Alternative()
_NULL: Final = Alternative(types=frozenset(("null",)))


class SchemaNode:
    """A schema that is read on first use. A value must match all schemas in `parts`."""

    def __init__(self, parts: tuple[Any, ...], walker: _Walker) -> None:
        self.parts = parts
        self._walker = walker

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The alternatives that the schema accepts. If there are none, no value matches the schema."""
        return self._walker.all_of(self.parts)

    @property
    def work(self) -> int:
        """The number of reading steps so far, for the whole schema to which this node belongs."""
        return self._walker.work

    @property
    def kinds(self) -> frozenset[str] | None:
        """The accepted JSON types; None means any type."""
        kinds: frozenset[str] = frozenset()
        for alternative in self.alternatives:
            if alternative.kinds is None:
                return None
            kinds |= alternative.kinds
        return kinds

    def named(self) -> dict[str, SchemaNode]:
        """Return the schemas of all members that any alternative names, in the order of the schema."""
        schemas: dict[str, dict[SchemaNode, None]] = {}
        for alternative in self.alternatives:
            for name, node in alternative.properties.items():
                schemas.setdefault(name, {})[node] = None
        return {name: self._walker.any_of(list(nodes)) for name, nodes in schemas.items()}


def walk(schema: Any) -> SchemaNode:
    """Return a node to read a schema with. An invalid or not self-contained schema is read as far as possible."""
    return _Walker(schema).node(schema)


def argument_schemas(schema: Any) -> dict[str, SchemaNode]:
    """Return the schemas of a tool's arguments by name, including arguments that only some alternatives name."""
    return walk(schema).named()


class _Walker:
    def __init__(self, root: Any) -> None:
        self._root = root
        # Nodes are found by the ids of their parts. Each node keeps its parts, so that no id is reused.
        self._nodes: dict[frozenset[int], SchemaNode] = {}
        self._known: dict[int, tuple[Alternative, ...]] = {}
        self._open: set[int] = set()
        self.work = 0  # Counts the schemas that were read and the alternatives that were joined.

    def node(self, *parts: Any) -> SchemaNode:
        distinct = {id(part): part for part in parts}
        key = frozenset(distinct)
        if key not in self._nodes:
            if len(self._nodes) >= _MOST_NODES:
                return SchemaNode((True,), self)
            self._nodes[key] = SchemaNode(tuple(distinct.values()), self)
        return self._nodes[key]

    def any_of(self, nodes: Sequence[SchemaNode]) -> SchemaNode:
        return nodes[0] if len(nodes) == 1 else self.node({"anyOf": [{"allOf": [*node.parts]} for node in nodes]})

    def all_of(self, parts: Sequence[Any]) -> tuple[Alternative, ...]:
        alternatives: tuple[Alternative, ...] = (_ANYTHING,)
        for part in parts:
            alternatives = self._joined(alternatives, self._read(part, 0), "allOf", [part])
        return alternatives

    def _read(self, schema: Any, depth: int) -> tuple[Alternative, ...]:
        if not isinstance(schema, dict):
            return (_ANYTHING,) if schema is True else ()
        known = self._known.get(id(schema))
        if known is not None:
            return known
        if id(schema) in self._open or depth > _DEEPEST:
            return (Alternative(rest={"allOf": ([schema],)}),)
        self._open.add(id(schema))
        self.work += 1
        own = self._own(schema)
        for part in (*_stated(schema, "if", "then", "else"), *_mapping(schema, "dependentSchemas").values()):
            for form in self._read(part, depth + 1):
                own = self._with_conditional(own, form)
        forms: tuple[Alternative, ...] = (own,)
        if isinstance(schema.get("$ref"), str):
            target = resolve(self._root, schema["$ref"])
            forms = self._joined(forms, self._read(target, depth + 1), "$ref", schema["$ref"])
        for part in _list(schema, "allOf"):
            forms = self._joined(forms, self._read(part, depth + 1), "allOf", [part])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                branches = _united(form for part in _list(schema, key) for form in self._read(part, depth + 1))
                forms = self._joined(forms, branches, key, schema[key])
        self._open.discard(id(schema))
        self._known[id(schema)] = forms
        return forms

    def _own(self, schema: dict[str, Any]) -> Alternative:
        kinds = schema.get("type")
        stated = [kinds] if isinstance(kinds, str) else _list(schema, "type")
        types = None if kinds is None else frozenset(kind for kind in stated if isinstance(kind, str))
        if types and "number" in types:
            types -= {"integer"}
        values = (schema["const"],) if "const" in schema else None
        if isinstance(schema.get("enum"), list):
            values = tuple(value for value in schema["enum"] if values is None or value in values)
        items = [*_stated(schema, "items", "unevaluatedItems"), *_list(schema, "prefixItems")]
        members = [
            *_mapping(schema, "patternProperties").values(),
            *_stated(schema, "additionalProperties", "unevaluatedProperties"),
        ]
        own = Alternative(
            types=types,
            properties={name: self.node(part) for name, part in _mapping(schema, "properties").items()},
            required=frozenset(name for name in _list(schema, "required") if isinstance(name, str)),
            items=self.any_of([self.node(part) for part in items]) if items else None,
            members=self.any_of([self.node(part) for part in members]) if members else None,
            rest={key: (value,) for key, value in schema.items() if key not in _READ and key not in _ANNOTATIONS},
        )
        return own if values is None else replace(own, types=None, values=of_types(values, types))

    def _joined(
        self, first: tuple[Alternative, ...], second: tuple[Alternative, ...] | None, keyword: str, stated: Any
    ) -> tuple[Alternative, ...]:
        """Return all combinations of two lists of alternatives; if they are too many, `keyword: stated` is unread."""
        if second == (_ANYTHING,):
            return first
        if second is not None and first == (_ANYTHING,):
            return second
        if second is None or len(first) * len(second) > _MOST_ALTERNATIVES:
            unread = {keyword: (stated,)}
            return tuple(replace(form, rest=_merged(form.rest, unread)) for form in first)
        pairs = ((form, other) for form in first for other in second)
        return tuple(both for form, other in pairs if (both := self._both(form, other)) is not None)

    def _both(self, form: Alternative, other: Alternative) -> Alternative | None:
        """Return an alternative for the values that match both alternatives, or None if no value matches both."""
        self.work += 1
        types = _common(form.types, other.types)
        values = form.values if other.values is None else other.values
        if form.values is not None and other.values is not None:
            values = tuple(value for value in form.values if value in other.values)
        if values is not None:
            types, values = None, of_types(values, types)
        if types == frozenset() or values == ():
            return None
        properties = {**form.properties, **other.properties}
        for name in form.properties.keys() & other.properties.keys():
            properties[name] = self.node(*form.properties[name].parts, *other.properties[name].parts)
        return Alternative(
            types=types,
            values=values,
            properties=properties,
            required=form.required | other.required,
            conditional=self._either_named(form.conditional, other.conditional),
            items=self._both_nodes(form, other, "items", "items"),
            members=self._both_nodes(form, other, "members", "additionalProperties"),
            rest=_merged(form.rest, other.rest),
        )

    def _both_nodes(self, form: Alternative, other: Alternative, part: str, keyword: str) -> SchemaNode | None:
        """Return the schema of the items or members in values that match both alternatives."""
        stated: list[tuple[bool, SchemaNode]] = []
        for side in (form, other):
            node = getattr(side, part)
            if node is not None:
                stated.append((keyword in side.rest, node))
        whole = [node for of_all, node in stated if of_all]
        if whole:
            return self.node(*(part for node in whole for part in node.parts))
        return self.any_of([node for _, node in stated]) if stated else None

    def _with_conditional(self, form: Alternative, part: Alternative) -> Alternative:
        """Add to `form` the members of a conditional subschema, which applies to only some of the values."""
        some = replace(part, rest={})
        named = self._either_named(part.conditional, part.properties)
        return replace(
            form,
            conditional=self._either_named(form.conditional, named),
            items=self._both_nodes(form, some, "items", "items"),
            members=self._both_nodes(form, some, "members", "additionalProperties"),
        )

    def _either_named(
        self, form: Mapping[str, SchemaNode], other: Mapping[str, SchemaNode]
    ) -> Mapping[str, SchemaNode]:
        shared = {name: self.any_of([form[name], other[name]]) for name in form.keys() & other.keys()}
        return {**form, **other, **shared}


def _united(alternatives: Iterable[Alternative]) -> tuple[Alternative, ...] | None:
    """Return the distinct alternatives; None if too many. Constants are merged; `null` joins a single alternative."""
    distinct: list[Alternative] = []
    constants: dict[str, Any] = {}
    for form in alternatives:
        if form == _ANYTHING:
            return (_ANYTHING,)
        if form.values is not None and form == Alternative(values=form.values):
            constants |= {repr(value): value for value in form.values}
        elif form.values is not None or form not in distinct:
            distinct.append(form)
        if len(distinct) > _MOST_ALTERNATIVES:
            return None
    if constants:
        distinct.append(Alternative(values=tuple(constants.values())))
    if len(distinct) == 2 and _NULL in distinct:  # noqa: PLR2004
        (other,) = (form for form in distinct if form != _NULL)
        if other.values is not None:
            return (replace(other, values=(*other.values, None)),)
        if other.types is not None:
            return (replace(other, types=other.types | {"null"}),)
    return tuple(distinct)


def _merged(form: Mapping[str, tuple[Any, ...]], other: Mapping[str, tuple[Any, ...]]) -> Mapping[str, tuple[Any, ...]]:
    both = {**form, **other}
    for key in form.keys() & other.keys():
        both[key] = (*form[key], *(value for value in other[key] if value not in form[key]))
    return both


def _common(form: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if form is None or other is None:
        return form if other is None else other
    both = form & other
    return both | {"integer"} if "integer" in form | other and "number" in form | other else both


def of_types(values: tuple[Any, ...], types: frozenset[str] | None) -> tuple[Any, ...]:
    """Return the values that have one of the JSON types. If `types` is None, return all values."""
    if types is None:
        return values
    wider = types | {"integer"} if "number" in types else types
    return tuple(value for value in values if _kind(value) in wider)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    kinds: dict[type, str] = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _stated(schema: Mapping[str, Any], *keys: str) -> list[Any]:
    return [schema[key] for key in keys if key in schema]


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _mapping(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}
