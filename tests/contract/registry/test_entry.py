"""The shorthand of a contract's schema."""

from __future__ import annotations

from typing import Any

import pytest

from pdp.contract.registry.entry import argument_schema
from pdp.errors import UsageError
from pdp.manifest.schema.compile import compile_schema

# The tool contract document, "A real example", word for word.
PRINTED = {
    "subquestion_id": "Optional[str] — single subquestion ID for targeted retrieval",
    "subquestion_ids": "Optional[list[str]] — multiple IDs for parallel (skeleton-of-thoughts) retrieval",
    "web_search": "Optional[bool] — enable web search for this step",
    "query": "str — the search query for retrieval",
}


def test_the_documents_schema() -> None:
    assert argument_schema(PRINTED, "contract") == {
        "type": "object",
        "properties": {
            "subquestion_id": {
                "type": ["string", "null"], "description": "single subquestion ID for targeted retrieval",
            },
            "subquestion_ids": {
                "type": ["array", "null"],
                "items": {"type": "string"},
                "description": "multiple IDs for parallel (skeleton-of-thoughts) retrieval",
            },
            "web_search": {"type": ["boolean", "null"], "description": "enable web search for this step"},
            "query": {"type": "string", "description": "the search query for retrieval"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("int", {"type": "integer"}),
        ("float - how much - at most", {"type": "number", "description": "how much - at most"}),
        ("dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("str | int", {"type": ["string", "integer"]}),
        ("Union[str, list[str]]", {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
        ('Literal["a", "b"]', {"type": "string", "enum": ["a", "b"]}),
        ("list[list[bool]]", {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}),
        ("str | str", {"type": "string"}),
    ],
)
def test_types(text: str, schema: dict[str, Any]) -> None:
    arguments = argument_schema({"x": text}, "contract")

    assert (arguments["properties"]["x"], arguments["required"]) == (schema, ["x"])
    compile_schema(arguments)


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ("str | None", ["a", None]),
        ("Optional[str | int]", ["a", 1, None]),
        ('Optional[Literal["a", 1]]', ["a", 1, None]),
        ("Optional[list[int]] | str", ["a", [1], None]),
    ],
)
def test_what_admits_none_may_be_left_out(text: str, admitted: list[Any]) -> None:
    schema = argument_schema({"x": text}, "contract")
    validator = compile_schema(schema)
    tried = ["a", 1, [1], None, ["a"], True, 1.5, {}]

    assert schema["required"] == []
    assert [value for value in tried if validator.is_valid({"x": value})] == admitted
    assert validator.is_valid({})


@pytest.mark.parametrize(
    "schema", [{"type": "object"}, {"properties": {"a": {"type": "string"}}}, {"$ref": "#/$defs/a"}]
)
def test_a_json_schema_stands_as_it_is(schema: dict[str, Any]) -> None:
    assert argument_schema(schema, "contract") == schema


KNOWN = "known: str, int, float, bool, list[T], dict[str, T], Optional[T], T | U, Literal[...]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Any — whatever", f"c: schema of argument `x`: `Any` is not a type: anything would pass ({KNOWN})"),
        ("flaot", "c: schema of argument `x`: 'flaot' is not a type (did you mean `float`?)"),
        ("list[", f"c: schema of argument `x`: 'list[' is not a type ({KNOWN})"),
        ("__import__('os')", f"c: schema of argument `x`: \"__import__('os')\" is not a type ({KNOWN})"),
        ("dict[int, str]", f"c: schema of argument `x`: 'dict[int, str]' is not a type ({KNOWN})"),
        ("Literal[1.5]",
         f"c: schema of argument `x`: 'Literal[1.5]' has to list texts, whole numbers or booleans ({KNOWN})"),
        ("", f"c: schema of argument `x`: '' is not a type ({KNOWN})"),
        (3, "c: schema of argument `x`: must be a text such as `str — the query` (or write a whole JSON Schema)"),
    ],
)  # fmt: skip
def test_what_is_no_type(text: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        argument_schema({"x": text}, "c")

    assert str(caught.value) == message
