"""Tests that the cost of a validation is limited before the validation starts. The tests compare costs, not times."""

import json
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.manifest.schema.compile import closed_schema, compile_schema
from pdp.manifest.schema.cost import MAX_COST, SchemaCost

BRANCHES = [{"type": "object", "properties": {"a": {"const": at}}, "required": ["a"]} for at in range(60)]
UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
NODE = {"type": ["object", "integer"], "properties": {"c": {"$ref": "#/$defs/N"}}}


def recursive(**keywords: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/N", "$defs": {"N": keywords}}


def cycle(length: int) -> dict[str, Any]:
    return {
        "$ref": "#/$defs/a0",
        "$defs": {
            f"a{at}": {"anyOf": [{"properties": {"c": {"$ref": f"#/$defs/a{(at + 1) % length}"}}}] * 2}
            for at in range(length)
        },
    }


WORST: list[tuple[str, dict[str, Any], Any]] = [
    ("branches", {"items": {"anyOf": BRANCHES}}, [{"a": "x"}] * 3000),
    ("one of branches", {"oneOf": BRANCHES[:20]}, {"a": ["x"] * 19_000}),
    ("negations", {"items": {"not": {"not": {"anyOf": BRANCHES}}}}, [{"a": "x"}] * 3000),
    ("conditions", {"items": {"allOf": [{"if": branch} for branch in BRANCHES]}}, [{"a": "x"}] * 3000),
    ("constants", {"items": {"enum": [{"a": at} for at in range(3_000)]}}, [{"a": 2_999}] * 50),
    ("constants that are fractions", {"items": {"enum": [at + 0.5 for at in range(100)]}}, [99.5] * 100),
    ("a long constant", {"items": {"const": [*range(3_000)]}}, [[*range(3_000)]] * 9),
    ("fractions", {"items": {"multipleOf": 1e-300}}, [1] * 1_000),
    ("names of members", {"items": {"properties": {f"a{at}": True for at in range(5_000)}}}, [{}] * 1_000),
    ("required names", {"items": {"required": [f"a{at}" for at in range(5_000)]}}, [{}] * 1_000),
    ("patterns of names", {"patternProperties": {f"^a.*{at}$": True for at in range(100)}},
     {f"a{at}": 1 for at in range(20_000)}),
    ("names by a pattern", {"propertyNames": {"pattern": "(0|1)*1(0|1){2000}x"}}, {"01" * 2_000: 1}),
    ("a pattern", {"pattern": "(0|1)*1(0|1){500}x"}, "01" * 1_000),
    ("a pattern that begins with any number of digits", {"pattern": "^[01]*[01]{500}x"}, "01" * 9_000),
    ("a pattern of which one branch has no beginning", {"pattern": "^a|1[01]{500}x"}, "01" * 9_000),
    ("a pattern behind digits that may be missing", {"pattern": "^b{2}a?1[01]{500}x"}, "01" * 9_000),
    ("patterns of items", {"items": {"pattern": "(0|1)*1(0|1){500}x"}}, ["01" * 50] * 20),
    ("contained", {"allOf": [{"contains": {"const": at}} for at in range(60)]}, [0] * 6_000),
    ("what no branch names", {"items": closed_schema({"anyOf": BRANCHES})}, [{"a": 0}] * 1_100),
    ("equal items at every depth", recursive(items={"$ref": "#/$defs/N"}, uniqueItems=True), [[[*range(20_000)], []]]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), [case[1:] for case in WORST], ids=[case[0] for case in WORST])
def test_too_expensive_value_is_rejected_before_validation(schema: dict[str, Any], value: Any) -> None:
    validator = compile_schema(schema)

    (line,) = validator.lines(value, "arguments")

    assert line.startswith("arguments: too expensive to validate: it may take ")
    assert len(json.dumps(value, separators=(",", ":"))) > validator.free_bytes


FREE: list[tuple[str, dict[str, Any], Any]] = [
    ("a list of texts", {"items": {"type": "string"}}, ["a" * 9] * 20_000),
    ("a long text beside a pattern",
     {"properties": {"id": {"pattern": "^[a-z]{3,64}$"}, "text": {"type": "string"}}},
     {"id": "abc", "text": "a," * 130_000}),
    ("documents with patterns",
     {"items": {"properties": {"id": {"format": "uuid"}, "text": {"type": "string"}}}},
     [{"id": "550e8400-e29b-41d4-a716-446655440000", "text": "a," * 2_000}] * 60),
    ("rows with patterns",
     {"items": {"properties": {"id": {"pattern": UUID}, "sku": {"pattern": "^[A-Z]{2}-[0-9]{6}$"},
                               "date": {"pattern": r"^\d{4}-\d{2}-\d{2}$"}, "name": {"pattern": "^.{1,255}$"}}}},
     [{"id": f"550e8400-e29b-41d4-a716-{at:012}", "sku": "AB-123456", "date": "2026-01-02", "name": "a"}
      for at in range(1_000)]),
    ("identifiers", {"items": {"pattern": UUID}}, [f"550e8400-e29b-41d4-a716-{at:012}" for at in range(5_000)]),
    ("a long text in branches with patterns",
     {"anyOf": [{"properties": {"path": {"pattern": r"^/[\w./-]{1,100}$"}, "text": {"type": "string"}}},
                {"properties": {"id": {"pattern": "^[A-Z]+-[0-9]{1,8}$"}}}]},
     {"path": "/a", "text": "a," * 50_000}),
    ("a long text with a long repetition", {"pattern": r"^.{1,1000}$"}, "a" * 200_000),
    ("a table", {"items": {"items": {"type": ["string", "number", "null"]}}}, [[1] * 20] * 1_000),
    ("branches beside a list",
     {"properties": {"kind": {"anyOf": BRANCHES}, "rows": {"items": {"type": "integer"}}}},
     {"kind": {"a": 1}, "rows": [1] * 19_000}),
    ("any JSON",
     recursive(anyOf=[{"type": ["string", "number"]}, {"type": "array", "items": {"$ref": "#/$defs/N"}},
                      {"type": "object", "additionalProperties": {"$ref": "#/$defs/N"}}]),
     {"a": [{"b": ["c", 1]}] * 1_000}),
    ("a branch that recurs twice", recursive(oneOf=[NODE, {**NODE, "minProperties": 9}]), {"c": {"c": {"c": 1}}}),
    ("a thousand items of 60 branches", {"items": closed_schema({"anyOf": BRANCHES})}, [{"a": 59}] * 1_000),
    ("a text with a pattern of 64 letters", {"pattern": "^[a-z]{0,64}$"}, "a" * 6_000),
    ("a branch that recurs in parts that all apply", recursive(allOf=[NODE, NODE]), {"c": {"c": {"c": 1}}}),
    ("a filter",
     recursive(anyOf=[{"properties": {name: {"items": {"$ref": "#/$defs/N"}}}, "required": [name]}
                      for name in ("and", "or", "not")]),
     {"and": [{"or": []}] * 2_000}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), [case[1:] for case in FREE], ids=[case[0] for case in FREE])
def test_large_value_is_validated_if_its_schema_is_cheap_to_check(schema: dict[str, Any], value: Any) -> None:
    validator = compile_schema(schema)

    assert not any("too expensive" in line for line in validator.lines(value, "arguments"))


@pytest.mark.parametrize(
    "schema",
    [
        cycle(2_000),
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"properties": {"a": {"anyOf": [{"allOf": BRANCHES}] * 70}}},
    ],
)
def test_too_expensive_schema_does_not_compile(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        compile_schema(schema)

    assert raised.value.hint == "use fewer branches and references, or split the tool into several tools"


@pytest.mark.parametrize("length", [5, 60])
def test_cost_does_not_grow_with_the_number_of_references_to_a_definition(length: int) -> None:
    schema = {
        "$ref": "#/$defs/a0",
        "$defs": {
            f"a{at}": {"properties": {"l": {"$ref": f"#/$defs/a{at + 1}"}, "r": {"$ref": f"#/$defs/a{at + 1}"}}}
            for at in range(length)
        },
    }

    assert SchemaCost(schema).of({"l": {"r": {"l": 1}}}) <= 16


def test_only_the_first_fault_of_a_large_value_is_listed() -> None:
    validator = compile_schema({"items": {"type": "integer"}})

    assert validator.lines(["a"] * 3, "arguments") == [
        f'arguments[{at}]: "a" is not of type "integer"' for at in range(3)
    ]
    assert validator.lines(["a"] * 20_000, "arguments") == ['arguments[0]: "a" is not of type "integer"']
    assert compile_schema({"items": {"anyOf": BRANCHES}}).lines([{"a": "x"}] * 1_800, "arguments") == [
        "arguments: does not match the schema, and is too large to locate the fault"
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"dependentRequired": {"a": [f"k{at}" for at in range(300)]}},
        {"const": "x" * 200_000},
        {"enum": [f"{at:03000}" for at in range(300)]},
        {"not": {"required": ["a"], "properties": {"b": {"const": "x" * 200_000}}}},
    ],
    ids=["dependentRequired", "const", "enum", "not"],
)
def test_only_the_first_fault_is_listed_if_fault_messages_are_long(schema: dict[str, Any]) -> None:
    assert len(compile_schema({"items": schema}).lines([{"a": 1}] * 100, "arguments")) == 1


def test_schema_fault_omits_the_errors_of_branches_and_shortens_quoted_values() -> None:
    validator = compile_schema(
        {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}, {"maxItems": 1}]}}}
    )

    assert validator.lines({"a": 1}, "arguments") == [
        "arguments.a: 1 is not valid under exactly one schema of the 'oneOf' keyword"
    ]
    (line,) = validator.lines({"a": ["x"] * 5_000}, "arguments")
    assert line.startswith('arguments.a: ["x","x",')
    assert line.endswith(" is not valid under exactly one schema of the 'oneOf' keyword")
    assert len(line) < 350


def test_reference_to_an_anyof_branch_is_validated_against_that_branch() -> None:
    schema = {
        "properties": {
            "a": {"anyOf": [{"type": "integer"}, {"type": "object"}]},
            "b": {"$ref": "#/properties/a/anyOf/0"},
        }
    }

    assert compile_schema(schema).lines({"a": {}, "b": "x"}, "arguments") == [
        'arguments.b: "x" is not of type "integer"'
    ]


def test_value_smaller_than_the_free_size_of_its_schema_is_never_too_expensive() -> None:
    """The test compares a list of digits with one long text, because no other value of the same size costs more."""
    for schema in ({}, {"items": {"anyOf": BRANCHES}}, {"items": {"pattern": "a{50}"}}, {"uniqueItems": True}):
        cost = SchemaCost(schema)
        size = min(cost.free_bytes, 1_000_000)
        assert cost.of([0] * (size // 2 - 1)) <= MAX_COST
        assert cost.of(["a" * (size - 4)]) <= MAX_COST
