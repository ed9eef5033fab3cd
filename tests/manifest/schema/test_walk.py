"""Tests of the walker that splits a JSON Schema into alternatives: branches, ignored keywords and limits."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdp.errors import FileFaultsError
from pdp.manifest.load import load_manifest
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.walk import Alternative, SchemaNode, argument_schemas, walk

TYPES = {"integer": int, "string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}


def test_schema_walker_finds_arguments_in_references_and_branches() -> None:
    schema = {
        "$ref": "#/$defs/A",
        "properties": {"a": {"const": 1}},
        "allOf": [{"properties": {"b": {"const": 2}, "a": {"enum": [0, 1]}}}, {"$ref": "#/$defs/A"}],
        "anyOf": [{"properties": {"d": {"const": 4}}}, {"properties": {"d": {"const": 5}}}],
        "$defs": {"A": {"properties": {"c": {"const": 3}}}},
    }

    constants = {name: [form.values for form in node.alternatives] for name, node in argument_schemas(schema).items()}
    assert constants == {"a": [(1,)], "c": [(3,)], "b": [(2,)], "d": [(4, 5)]}
    assert argument_schemas({"properties": []}) == {}


NULL_OR_TEXT = Alternative(types=frozenset(("null", "string")), rest={"maxLength": (5,)})


@pytest.mark.parametrize(
    ("schema", "alternatives"),
    [
        (True, [Alternative()]),
        (False, []),
        ({"description": "anything"}, [Alternative()]),
        ({"type": ["number", "integer"]}, [Alternative(types=frozenset(("number",)))]),
        ({"type": "string", "enum": ["a", 1, "b"]}, [Alternative(values=("a", "b"))]),
        ({"enum": [1, 2], "const": 2}, [Alternative(values=(2,))]),
        ({"type": ["string", "null"], "maxLength": 5}, [NULL_OR_TEXT]),
        ({"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}, [NULL_OR_TEXT]),
        ({"oneOf": [{"type": "null"}, {"enum": ["a"]}]}, [Alternative(values=("a", None))]),
        ({"anyOf": [{"const": 1}, {"enum": [2, 1]}]}, [Alternative(values=(1, 2))]),
        ({"anyOf": [{"type": "string"}, {}]}, [Alternative()]),
        ({"type": "integer", "allOf": [{"type": "number"}, {"minimum": 1}]},
         [Alternative(types=frozenset(("integer",)), rest={"minimum": (1,)})]),
        ({"type": "integer", "allOf": [{"type": "string"}]}, []),
        ({"minimum": 1, "allOf": [{"minimum": 2}]}, [Alternative(rest={"minimum": (1, 2)})]),
        ({"type": "string", "not": {"const": "a"}},
         [Alternative(types=frozenset(("string",)), rest={"not": ({"const": "a"},)})]),
        ({"$ref": "#"}, [Alternative(rest={"allOf": ([{"$ref": "#"}],)})]),
        ({"type": "string", "anyOf": [{"pattern": str(at)} for at in range(65)]},
         [Alternative(types=frozenset(("string",)), rest={"anyOf": ([{"pattern": str(at)} for at in range(65)],)})]),
    ],
)  # fmt: skip
def test_schema_walker_returns_each_alternative_of_a_schema(schema: Any, alternatives: list[Alternative]) -> None:
    assert list(walk(schema).alternatives) == alternatives


_LEAVES = st.sampled_from([
    True, {}, {"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a", 1, None]}, {"const": 1},
    {"type": "integer", "minimum": 1}, {"type": "string", "maxLength": 1}, {"$ref": "#/$defs/d"}, {"not": {"const": 1}},
])  # fmt: skip
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", ["object", "null"]]),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.just(["a"]),
            "additionalProperties": inner | st.just(False),
            "items": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^b", "c"]), inner, min_size=1, max_size=2),
            "unevaluatedProperties": inner | st.just(False),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "unevaluatedItems": inner | st.just(False),
            "contains": inner,
            "if": inner,
            "then": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=8,
)
_VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, "a", "bc"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)


def admitted(node: SchemaNode, value: Any) -> bool:
    return any(admitted_by(form, node, value) for form in node.alternatives)


def admitted_by(form: Alternative, node: SchemaNode, value: Any) -> bool:
    if form.values is not None:
        return any(type(value) is type(constant) and value == constant for constant in form.values)
    if form.types is not None and not any(type(value) is TYPES[kind] for kind in form.types if kind in TYPES):
        return False
    if isinstance(value, dict):
        return form.required <= value.keys() and all(
            admitted(form.properties[name], part)
            if name in form.properties
            else any(admitted(other, part) for other in members(form, node, name))
            for name, part in value.items()
        )
    return not isinstance(value, list) or all(
        any(admitted(other, part) for other in items(form, node)) for part in value
    )


def members(form: Alternative, node: SchemaNode, name: str) -> list[SchemaNode]:
    """Return the schemas for a member whose name is not in `properties`.

    For `unevaluatedProperties`, a name in the `properties` of another alternative also counts.
    """
    if "additionalProperties" in form.rest:
        return [form.members or ANYTHING]
    if "unevaluatedProperties" not in form.rest:
        return [ANYTHING]
    forms = node.alternatives
    named = [of_name for other in forms for of_name in (other.properties, other.conditional) if name in of_name]
    return [*(of_name[name] for of_name in named), *(other.members for other in forms if other.members is not None)]


def items(form: Alternative, node: SchemaNode) -> list[SchemaNode]:
    if "items" in form.rest:
        return [form.items or ANYTHING]
    # `unevaluatedItems` does not apply to items that `contains` or a condition has accepted, so such an item may have
    # any value.
    if "unevaluatedItems" not in form.rest or form.rest.keys() & {"contains", "if"}:
        return [ANYTHING]
    return [other.items for other in node.alternatives if other.items is not None]


ANYTHING = walk(True)


_ANY_MEMBER = {"additionalProperties": True}
_NAMES_A = {"properties": {"a": {"const": 1}}}


@given(_SCHEMAS, _VALUES)
@example({"patternProperties": {"^b": {"type": "integer"}}, "allOf": [_ANY_MEMBER]}, {"c": "a"})
@example({"unevaluatedProperties": False, "allOf": [_ANY_MEMBER]}, {"c": "a"})
@example({"unevaluatedProperties": False, "anyOf": [_NAMES_A, {"properties": {"b": {}}}]}, {"a": 1, "b": "a"})
@example({"unevaluatedProperties": False, "if": _NAMES_A, "then": {"properties": {"b": {}}}}, {"a": 1, "b": "a"})
@example({"items": {"type": "integer"}, "allOf": [{"prefixItems": [{"enum": [1]}]}]}, [1, 2])
@example({"unevaluatedItems": False, "allOf": [{"items": {"type": "string"}}]}, ["a"])
@example({"unevaluatedItems": False, "contains": {"type": "string"}}, ["a"])
@settings(max_examples=60)
def test_schema_walker_accepts_every_value_that_the_validator_accepts(schema: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"d": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    if compile_schema(whole).is_valid(value):
        assert admitted(walk(whole), value)


@pytest.mark.parametrize("levels", [25, 200])
@pytest.mark.parametrize("keyword", ["properties", "allOf", "anyOf"])
def test_schema_with_exponentially_growing_references_is_read_quickly_or_rejected(keyword: str, levels: int) -> None:
    definitions: dict[str, Any] = {f"a{levels}": {"type": "string"}}
    for at in range(levels):
        inner = {"$ref": f"#/$defs/a{at + 1}"}
        both = {"x": dict(inner), "y": dict(inner)}
        typed = {"type": "object"} if keyword == "properties" else {}
        definitions[f"a{at}"] = {**typed, keyword: both if keyword == "properties" else [*both.values()]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": definitions}
    manifest = {"manifest_version": "1", "tools": [{"name": "do_it", "schema": schema}]}

    if keyword == "properties" and levels < 200:
        assert load_manifest("m.json", manifest_text=json.dumps(manifest).encode()).tools
        return
    # Below its depth limit, the walker reads a schema as any type. A validation with this schema would be too
    # expensive.
    expected = frozenset(("object",) if keyword == "properties" else ("string",))
    assert walk(schema).named()["a"].kinds == (None if levels == 200 and keyword != "properties" else expected)
    with pytest.raises(FileFaultsError) as raised:
        load_manifest("m.json", manifest_text=json.dumps(manifest).encode())
    (fault,) = [fault for fault in raised.value.faults if not fault.warning]
    many = "checks one value more than 4096 times" if levels < 200 else "recurses without end, or is nested"
    assert many in fault.message
    assert fault.hint == "use fewer branches and references, or split the tool into several tools"
