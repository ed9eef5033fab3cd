"""Tests of the JSON Schemas of tools: references, closed objects and compilation."""

from typing import Any

import pytest
import yaml

from pdp.errors import UsageError
from pdp.manifest.schema.compile import closed_schema, compile_schema
from pdp.manifest.schema.faults import DRAFT, FORMATS, read_schema
from pdp.manifest.schema.references import self_contained, shared_types, subschemas

NUMBER = {"type": "object", "properties": {"amount": {"type": "number"}}}


def findings(schema: dict[str, Any], **definitions: Any) -> list[str]:
    return [
        f"{'/'.join(map(str, one.path))}: {one.message}"
        for one in read_schema(schema, definitions, ("schema",), root_object=True)[1]
    ]


def test_schema_fault_messages_name_the_path_and_the_problem() -> None:
    validator = compile_schema(closed_schema({**NUMBER, "required": ["amount", "to"]}))

    assert validator.lines({"amount": "1", "x": 2}, "arguments") == [
        'arguments.amount: "1" is not of type "number"',
        'arguments: "to" is a required property',
        "arguments: Additional properties are not allowed ('x' was unexpected)",
    ]


@pytest.mark.parametrize(
    ("schema", "value", "detail"),
    [
        ({"properties": {"a": {"type": "number"}}}, {"a": "1"}, ("a", "type", ["number"], "string")),
        ({"required": ["a"]}, {}, ("a", "required", True, "null")),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": [], "c": 1},
         ("b", "additionalProperties", False, "array")),
        ({"items": {"maxLength": 1}}, ["a", "bc"], ("[1]", "maxLength", 1, "string")),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1, "x"], ("", "unevaluatedItems", False, "array")),
        ({"enum": list(range(500))}, True, ("", "enum", None, "boolean")),
        ({"properties": {"a": {"oneOf": [{"type": "string"}]}}}, {"a": 1.5}, ("a", "oneOf", None, "number")),
    ],
)  # fmt: skip
def test_schema_fault_details_do_not_contain_the_faulty_value(schema: Any, value: Any, detail: tuple[Any, ...]) -> None:
    argument, rule, expected, found = detail

    assert compile_schema(schema).explained(value, "arguments")[1] == [
        {"argument": argument, "rule": rule, "expected": expected, "found": found}
    ]


def test_schema_fault_shows_a_minimum_or_maximum_with_all_its_digits() -> None:
    """A schema from an application, such as a loop's answer schema, may contain larger numbers than a manifest."""
    assert compile_schema({"minimum": 10**30}).lines(5, "value") == [f"value: 5 is less than the minimum of {10**30}"]


def test_string_values_are_checked_against_the_format_keyword() -> None:
    for name in FORMATS:
        assert not compile_schema({"format": name}).is_valid("@@ not } (")
    assert compile_schema({"format": "date"}).is_valid("2026-07-01")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"format": "int32"},
        {"pattern": "(?=a)"},
        {"pattern": "("},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "types.json#/$defs/Missing"},
    ],
)
def test_schema_that_cannot_be_checked_does_not_compile(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^JSON Schema: "):
        compile_schema(schema)


def test_schema_patterns_are_matched_in_linear_time() -> None:
    validator = compile_schema({"pattern": "^(a+)+$"})

    assert not validator.is_valid("a" * 100_000 + "!")
    assert not compile_schema({"pattern": "^[a-z]+$"}).is_valid("abc\n")


def test_shared_schema_types_compile_and_reference_only_shared_types() -> None:
    for name, schema in shared_types().items():
        compile_schema({"$ref": f"types.json#/$defs/{name}"})
        assert "description" in schema
        assert all(
            one["$ref"].removeprefix("#/$defs/") in shared_types() for _, one in subschemas(schema) if "$ref" in one
        )
    assert {"SourceRef", "EvidenceSpan", "ExceptionRef", "RuleTrace", "Metric"} <= set(shared_types())


def test_referenced_shared_type_is_copied() -> None:
    schema = {"type": "object", "properties": {"evidence": {"$ref": "EvidenceSpan"}}}

    alone, _ = self_contained(schema, {})

    assert alone["properties"]["evidence"]["$ref"] == "#/$defs/types_EvidenceSpan"
    assert alone["$defs"]["types_EvidenceSpan"]["properties"]["source"] == {"$ref": "#/$defs/types_SourceRef"}
    assert sorted(alone["$defs"]) == ["types_EvidenceSpan", "types_SourceRef"]
    assert schema == {"type": "object", "properties": {"evidence": {"$ref": "EvidenceSpan"}}}
    assert compile_schema(alone).is_valid({"evidence": {"source": {"id": "doc-7"}}})
    assert not compile_schema(alone).is_valid({"evidence": {"source": {}}})


def test_referenced_file_definitions_are_copied_recursively() -> None:
    definitions = {
        "Money": {"properties": {"currency": {"$ref": "#/$defs/Currency"}, "next": {"$ref": "#/$defs/Money"}}},
        "Currency": {"enum": ["EUR"]},
        "Unused": {"type": "string"},
    }
    alone, _ = self_contained({"type": "object", "properties": {"m": {"$ref": "#/$defs/Money"}}}, definitions)

    assert sorted(alone["$defs"]) == ["file_Currency", "file_Money"]
    validator = compile_schema(alone)
    assert validator.is_valid({"m": {"currency": "EUR", "next": {"currency": "EUR"}}})
    assert not validator.is_valid({"m": {"next": {"currency": "USD"}}})


def test_long_chain_of_definitions_is_copied() -> None:
    definitions: dict[str, Any] = {
        f"a{at}": {"properties": {"x": {"$ref": f"#/$defs/a{at + 1}"}}} for at in range(1200)
    }
    alone, _ = self_contained({"$ref": "#/$defs/a0"}, {**definitions, "a1200": {"type": "string"}})

    assert len(alone["$defs"]) == 1201


def test_copied_definitions_never_overwrite_definitions_of_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "own": {"$ref": "#/$defs/A"},
            "copied": {"$ref": "#/$defs/B"},
            "shared": {"$ref": "SourceRef"},
            "literal": {"const": {"$ref": "nowhere"}},
        },
        "$defs": {"A": {"type": "string"}, "file_B": {"type": "null"}, "types_SourceRef": {"type": "null"}},
    }
    alone, _ = self_contained(schema, {"A": {"type": "number"}, "B": {"$ref": "#/$defs/A"}})

    validator = compile_schema(alone)
    assert validator.is_valid({"own": "x", "copied": 1, "shared": {"id": "s"}})
    assert not validator.is_valid({"own": 1})
    assert not validator.is_valid({"copied": "x"})
    assert alone["$defs"]["file_B"] == {"type": "null"}
    assert alone["properties"]["literal"] == {"const": {"$ref": "nowhere"}}


# Each item has a name, a schema, a value that the closed schema accepts, and a value that the closed schema rejects.
CLOSED: list[tuple[str, str, str, str]] = [
    ("arguments", "{type: object, properties: {amount: {type: number}}}", "[{}, {amount: 1}]", "[{other: 1}]"),
    ("no arguments at all", "{type: object}", "[{}]", "[{a: 1}]"),
    ("stated open", "{type: object, properties: {amount: {type: number}}, additionalProperties: true}",
     "[{other: 1}]", "[]"),
    ("stated by a schema", "{type: object, properties: {amount: {type: number}}, additionalProperties: {type: string}}",
     "[{o: x}]", "[{o: 1}]"),
    ("patterns", "{type: object, patternProperties: {^x-: {}}}", "[{x-a: 1}]", "[{x-a: 1, other: 1}]"),
    ("nested objects", "{type: object, properties: {a: {type: object, properties: {b: {}}}}}",
     "[{a: {b: 1}}]", "[{a: {c: 1}}]"),
    ("nested objects in lists", "{type: object, properties: {a: {type: array, items: {properties: {b: {}}}}}}",
     "[{a: [{b: 1}]}]", "[{a: [{b: 1}, {c: 1}]}]"),
    ("a nested object without properties is free", "{type: object, properties: {hints: {type: object}}}",
     "[{hints: {any: 1}}]", "[]"),
    ("an argument called properties",
     "{type: object, properties: {properties: {type: object, properties: {type: {type: string}}}}}",
     "[{properties: {type: x}}]", "[{properties: {other: 1}}, {other: 1}]"),
    ("branches name arguments too",
     "{type: object, properties: {a: {}}, anyOf: [{properties: {b: {}}}, {properties: {c: {}}}]}",
     "[{a: 1, b: 2}, {c: 1}]", "[{d: 1}]"),
    ("conditions", "{type: object, properties: {a: {}}, if: {required: [a]}, then: {properties: {b: {}}}}",
     "[{a: 1, b: 1}]", "[{b: 1}, {a: 1, c: 1}]"),
    ("objects inside of branches stay as they are", "{type: object, allOf: [{properties: {a: {properties: {b: {}}}}}]}",
     "[{a: {b: 1, c: 1}}]", "[{x: 1}]"),
    ("a definition used plainly",
     "{type: object, properties: {a: {$ref: '#/$defs/A'}}, $defs: {A: {properties: {b: {}}}}}",
     "[{a: {b: 1}}]", "[{a: {c: 1}}]"),
    ("a definition that is also extended",
     ("{type: object, properties: {a: {$ref: '#/$defs/A'}, more: {allOf: [{$ref: '#/$defs/A'}, {properties: {c: "
      "{}}}]}}, $defs: {A: {properties: {b: {}}}}}"),
     "[{a: {b: 1}}, {more: {b: 1, c: 1}}]", "[{a: {c: 1}}, {more: {d: 1}}]"),
    ("a reference beside properties",
     ("{type: object, properties: {a: {$ref: '#/$defs/A', properties: {c: {}}}}, $defs: {A: {properties: {b: "
      "{}}}}}"),
     "[{a: {b: 1, c: 1}}]", "[{a: {d: 1}}]"),
    ("the arguments by reference", "{$ref: '#/$defs/A', $defs: {A: {type: object, properties: {b: {}}}}}",
     "[{b: 1}]", "[{c: 1}]"),
    ("a negation is not turned around",
     "{type: object, properties: {a: {not: {properties: {b: {const: 1}}, required: [b]}}}}",
     "[{a: {b: 2}}]", "[{a: {b: 1}}, {a: {b: 1, c: 1}}]"),
    ("branches that name no property leave an object free",
     "{type: object, properties: {a: {anyOf: [{type: object}, {enum: [x]}]}}}",
     "[{a: {k: 1}}, {a: x}]", "[{a: y}, {b: 1}]"),
    ("contains is not narrowed",
     "{type: object, properties: {a: {contains: {properties: {b: {const: 1}}, required: [b]}}}}",
     "[{a: [{b: 1, c: 1}]}]", "[{a: [{b: 2}]}]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), [case[1:] for case in CLOSED], ids=[case[0] for case in CLOSED]
)
def test_closed_copy_of_a_schema_rejects_properties_that_the_schema_does_not_name(
    schema: str, valid: str, invalid: str
) -> None:
    stated = yaml.safe_load(schema)
    closed = closed_schema(stated)
    validator = compile_schema(closed)

    assert [value for value in yaml.safe_load(valid) if not validator.is_valid(value)] == []
    assert [value for value in yaml.safe_load(invalid) if validator.is_valid(value)] == []
    assert stated == yaml.safe_load(schema)
    assert closed_schema(closed) == closed


def test_all_faults_of_a_schema_are_reported_together() -> None:
    schema = {
        "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "a": {"$ref": "https://example.org"},
            "b": {"$ref": "Nope"},
            "c": {"pattern": "(?<!x)y"},
            "d": {"format": "emai"},
            "e": 5,
            "f": {"$id": "x", "$dynamicRef": "#y"},
            "g": {"requird": []},
            "h": {"patternProperties": {"[": {}}},
        },
        "required": "a",
    }

    assert sorted(findings(schema)) == [
        "schema/$schema: only draft 2020-12 of JSON Schema is supported",
        "schema/properties/a/$ref: $ref to another file: https://example.org",
        "schema/properties/b/$ref: $ref to another file: Nope",
        "schema/properties/c/pattern: `(?<!x)y` is not a regular expression that can be checked in linear time",
        "schema/properties/d/format: format `emai` is not known and would never be checked",
        'schema/properties/e: not a JSON Schema: 5 is not of types "boolean", "object"',
        "schema/properties/f/$dynamicRef: keyword `$dynamicRef` is not supported",
        "schema/properties/f/$id: keyword `$id` is not supported",
        "schema/properties/g/requird: `requird` is not a keyword of JSON Schema and checks nothing",
        "schema/properties/h/patternProperties/[: `[` is not a regular expression that can be checked in linear time",
        'schema/required: not a JSON Schema: "a" is not of type "array"',
    ]


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("minLenght", "did you mean `minLength`?"),
        ("minumum", "did you mean `minimum`?"),
        ("dependencies", None),
        ("additionalItems", None),
        ("zzz", "remove it, or rename a custom keyword to `x-…`"),
    ],
)
def test_unknown_keyword_is_a_fault(keyword: str, hint: str | None) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {keyword: {}}}}}
    [finding] = read_schema(schema, {}, ("schema",), root_object=True)[1]

    assert finding.path == ("schema", "properties", "a", "items", keyword)
    assert (finding.message, finding.warning) == (
        f"`{keyword}` is not a keyword of JSON Schema and checks nothing",
        False,
    )
    assert hint in (None, finding.hint)


def test_schema_may_use_descriptive_keywords_such_as_title() -> None:
    described = {
        "$comment": "x", "title": "x", "description": "x", "default": {"minLenght": 1}, "examples": [1],
        "deprecated": True, "readOnly": True, "writeOnly": False, "nullable": True,
        "discriminator": {"propertyName": "a"}, "example": 1, "externalDocs": {}, "xml": {}, "x-order": 1,
    }  # fmt: skip
    schema = {"$schema": DRAFT, "type": "object", "properties": {"minLenght": described}, **described}

    assert findings(schema) == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {}}, "required": ["a", "b"]}, "required/1"),
        ({"required": ["b"]}, "required/0"),
        ({"properties": {"o": {"properties": {"a": {}}, "required": ["b"]}}}, "properties/o/required/0"),
        ({"properties": {"o": {"required": ["b"]}}}, None),
        ({"required": ["b"], "additionalProperties": True}, None),
        ({"required": ["x_b"], "patternProperties": {"^x_": {}}, "additionalProperties": False}, None),
        ({"required": ["b"], "anyOf": [{"properties": {"b": {}}}]}, None),
        ({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, None),
    ],
)
def test_required_property_of_a_closed_object_must_be_named(schema: dict[str, Any], place: str | None) -> None:
    assert findings({"type": "object", **schema}) == (
        [] if place is None else [f"schema/{place}: `b` is required but undefined"]
    )


@pytest.mark.parametrize(
    "schema", [{}, {"type": "string"}, {"type": ["object", "null"]}, {"$ref": "#"}, {"properties": {"a": {}}}]
)
def test_argument_schema_must_be_of_type_object(schema: dict[str, Any]) -> None:
    assert findings(schema) == ["schema: schema of the arguments must be of type object"]


def test_argument_schema_may_be_a_reference_to_an_object() -> None:
    assert findings({"$ref": "#/$defs/A"}, A={"type": "object"}) == []
