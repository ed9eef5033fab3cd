"""A contract can describe its arguments in a shorthand, which is converted to a JSON schema."""

import json
from typing import Any

import pytest

from pdp.contract.registry.entry import argument_schema
from pdp.errors import UsageError
from pdp.manifest.schema.compile import compile_schema

# Copied word for word from the section "A real example" of the tool contract document.
PRINTED = {
    "subquestion_id": "Optional[str] — single subquestion ID for targeted retrieval",
    "subquestion_ids": "Optional[list[str]] — multiple IDs for parallel (skeleton-of-thoughts) retrieval",
    "web_search": "Optional[bool] — enable web search for this step",
    "query": "str — the search query for retrieval",
}


NULL = {"type": "null"}


def test_shorthand_example_of_the_tool_contract_document_is_converted() -> None:
    assert argument_schema(PRINTED, "contract") == {
        "type": "object",
        "properties": {
            "subquestion_id": {
                "anyOf": [{"type": "string"}, NULL], "description": "single subquestion ID for targeted retrieval",
            },
            "subquestion_ids": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, NULL],
                "description": "multiple IDs for parallel (skeleton-of-thoughts) retrieval",
            },
            "web_search": {"anyOf": [{"type": "boolean"}, NULL], "description": "enable web search for this step"},
            "query": {"type": "string", "description": "the search query for retrieval"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "admitted", "required"),
    [
        ("int", [1], True),
        ("float - how much - at most", [1, 1.5], True),
        ("dict[str, int]", [{}, {"k": 1}], True),
        ("str | int", ["a", 1], True),
        ("Union[str, list[str]]", ["a", ["a"]], True),
        ('Literal["a", "b"]', ["a"], True),
        ("List[List[bool]]", [[[True]]], True),
        ("str | None", ["a", None], False),
        ("Optional[str | int]", ["a", 1, None], False),
        ('Optional[Literal["a", 1]]', ["a", 1, None], False),
        ("Optional[list[int]] | str", ["a", [1], None], False),
    ],
)
def test_shorthand_type_sets_allowed_values_and_whether_the_argument_is_required(
    text: str, admitted: list[Any], required: bool
) -> None:
    validator = compile_schema(argument_schema({"x": text}, "contract"))
    tried = ["a", 1, 1.5, [1], ["a"], [[True]], {}, {"k": 1}, None, True]

    assert json.dumps([value for value in tried if validator.is_valid({"x": value})]) == json.dumps(admitted)
    assert validator.is_valid({}) is not required


@pytest.mark.parametrize(
    "schema", [{"type": "object"}, {"properties": {"a": {"type": "string"}}}, {"$ref": "#/$defs/a"}]
)
def test_json_schema_in_a_tool_contract_is_returned_unchanged(schema: dict[str, Any]) -> None:
    assert argument_schema(schema, "contract") == schema


KNOWN = (
    "known: str, int, float, bool, list[T], dict[str, T], Optional[T], T | U, Literal of texts, integers or booleans"
)


@pytest.mark.parametrize(
    "text",
    [
        "Any", "flaot", "list[", "", "str, int", "list[1]", "1 | 2", "__import__('os')", "Literal[__import__('os')]",
        "list['__import__(1)']", "Literal[().a]",
        "list[str, int]", "List[()]", "dict[int, str]", "dict[()]", "dict[str]", "dict[str, int, int]",
        "Optional[dict[int, str]]", "Literal[1.5]", "Literal[b'x']",
    ],
)  # fmt: skip
def test_unknown_shorthand_type_is_an_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        argument_schema({"x": text}, "c")

    assert str(caught.value) == f"c: schema of argument `x`: {text!r} is not a type ({KNOWN})"


def test_shorthand_type_must_be_a_text() -> None:
    with pytest.raises(
        UsageError, match=r"^c: schema of argument `x`: must be a text such as `str — the query` \(write"
    ):
        argument_schema({"x": 3}, "c")
