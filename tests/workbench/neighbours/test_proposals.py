"""Example arguments for tools are generated from the schemas."""

from typing import Any

import pytest

from pdp.contract.compiled import CompiledManifest
from pdp.workbench.neighbours.proposals import example_arguments
from pdp.workbench.scenarios.files.suite import find_suites, load_suite
from tests.support import ROOT

SCHEMAS: list[tuple[dict[str, Any], Any]] = [
    ({"examples": ["e"], "enum": ["x"], "default": "d"}, "e"),
    ({"enum": ["x", "y"], "default": "d"}, "x"),
    ({"const": 4}, 4),
    ({"type": "integer", "default": 7}, 7),
    ({"type": "number", "minimum": 2.5}, 2.5),
    ({"type": "number", "exclusiveMinimum": 2}, 3),
    ({"type": "number", "maximum": -2}, -2),
    ({"type": "integer"}, 1),
    ({"type": "boolean"}, True),
    ({"type": ["null", "boolean"]}, True),
    ({"type": "null"}, None),
    ({"type": "string", "minLength": 8}, "<value>x"),
    ({"type": "string", "maxLength": 3}, "<va"),
    ({"type": "string", "format": "date"}, "2026-01-01"),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
    ({"type": "array"}, []),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 1),
    ({"$ref": "#/$defs/one"}, {"a": 1}),
    ({"allOf": [{"$ref": "#/$defs/one"}], "required": ["b"], "properties": {"b": {"const": 2}}}, {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_generated_example_arguments_match_the_tool_schema(schema: dict[str, Any], expected: Any) -> None:
    item = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    whole = {"type": "object", "required": ["value"], "properties": {"value": schema}, "$defs": {"one": item}}
    assert example_arguments(whole) == {"value": expected}


@pytest.mark.parametrize(
    "schema", [{}, {"required": 1, "type": "object"}, {"type": 3}, {"properties": []}, {"$ref": "#/no/where"}]
)
def test_empty_schema_gives_no_example_arguments(schema: dict[str, Any]) -> None:
    assert example_arguments(schema) == {}


def test_example_arguments_of_a_recursive_schema_are_finite() -> None:
    schema = {"type": "object", "required": ["me"], "properties": {"me": {"$ref": "#"}}}
    made, depth = example_arguments(schema), 0
    while isinstance(made, dict):
        made, depth = made["me"], depth + 1
    assert (made, depth) == ("<me>", 9)


def test_example_arguments_are_valid_for_shipped_tools() -> None:
    checked = 0
    for file in find_suites([ROOT / "tests/scenarios", ROOT / "examples/payments"]):
        compiled = CompiledManifest(load_suite(file).manifest)
        for name, tool in compiled.manifest.tools.items():
            found = compiled.tool(name)
            assert found is not None
            assert found.validator.is_valid(example_arguments(tool.schema_)), name
            checked += 1
    assert checked > 10
