"""Tests that the schemas of a tool match the schemas that the tool's pattern prescribes."""

import copy
from typing import Any

import pytest

from pdp.manifest.fields import Pattern
from pdp.manifest.load import load_effective
from pdp.manifest.model import DeclaredTool
from pdp.manifest.schema.references import self_contained
from pdp.manifest.schema.shapes import shape, shape_findings, shape_validator
from tests.support import ROOT

UNDERWRITING = ROOT / "examples/underwriting"
TOOLS = {
    tool.pattern: tool
    for tool in load_effective(UNDERWRITING / "manifest.yaml", UNDERWRITING / "governance.yaml").tools.values()
    if tool.pattern
}

REQUEST = {
    "type": "object",
    "required": ["source"],
    "properties": {"source": {"$ref": "SourceRef"}},
}
RESPONSE = {
    "type": "object",
    "required": ["value", "evidence", "confidence"],
    "properties": {
        "value": {"type": "string"},
        "evidence": {"$ref": "EvidenceSpan"},
        "confidence": {"$ref": "Confidence"},
    },
}


def shape_faults(pattern: str, request: Any = None, response: Any = None) -> list[str]:
    tool = DeclaredTool.model_validate(
        {
            "name": "do_it",
            "schema": self_contained(request or REQUEST, {})[0],
            "result_schema": None if response is None else self_contained(response, {})[0],
            "pattern": pattern,
        }
    )
    return [f"{'.'.join(map(str, one.path))}: {one.message}" for one in shape_findings(tool)]


def changed(schema: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], name: value}}


def test_example_tools_match_the_shapes_of_all_ten_patterns() -> None:
    assert set(TOOLS) == set(Pattern)
    assert [list(shape_findings(tool)) for tool in TOOLS.values()] == [[]] * 10
    for pattern in Pattern:
        assert shape_validator(pattern, "request").is_valid(None) is False


@pytest.mark.parametrize("pattern", list(Pattern))
def test_tool_must_require_the_members_that_its_pattern_requires(pattern: Pattern) -> None:
    tool = TOOLS[pattern]
    for part, field in (("request", "schema_"), ("response", "result_schema")):
        skeleton = shape(pattern)[part]
        for name in skeleton.get("required", ()):
            own = copy.deepcopy(getattr(tool, field))
            own["required"] = [one for one in own["required"] if one != name]
            found = list(shape_findings(tool.model_copy(update={field: own})))
            assert [one.message.endswith(f"`{name}` must be required") for one in found] == [True]


def test_tool_with_a_pattern_needs_a_result_schema() -> None:
    assert shape_faults("extraction") == ["pattern: pattern extraction needs a `result_schema`"]


TWO_TYPES = {"anyOf": [{"$ref": "EvidenceSpan"}, {"type": "null"}]}
OTHER_KINDS = "`action.kind` allows tools that `commits` does not name"
NARROWER = {"allOf": [{"$ref": "EvidenceSpan"}, {"required": ["text"]}]}


@pytest.mark.parametrize(
    ("name", "schema", "found"),
    [
        ("source", {"type": "string"}, ["`source` must be of type object, not string"]),
        ("source", {"type": "object", "properties": {"id": {"type": "integer"}}},
         ["`source.id` must be of type string, not integer", "`source.id` must be required"]),
        ("hints", False, ["`hints` accepts no value"]),
        ("confidence", {"type": "number"},
         ["`confidence` must have `minimum: 0`", "`confidence` must have `maximum: 1`"]),
        ("confidence", {"type": "number", "minimum": -0.1, "maximum": 1}, ["`confidence` must have `minimum: 0`"]),
        ("confidence", {"enum": [0, 0.5, 1]}, []),
        ("evidence", TWO_TYPES, ["`evidence` must be of type object, not null or object"]),
        ("evidence", NARROWER, []),
        ("exceptions", {"type": "array"}, ["`exceptions[]` must have a type"]),
    ],
)  # fmt: skip
def test_member_that_deviates_from_the_shape_is_reported(name: str, schema: Any, found: list[str]) -> None:
    in_request = name in ("source", "hints")
    own = changed(REQUEST if in_request else RESPONSE, name, schema)
    field, what = ("schema", "argument") if in_request else ("result_schema", "member of the result")

    assert shape_faults("extraction", *((own, RESPONSE) if in_request else (REQUEST, own))) == [
        f"{field}.properties.{name}: pattern extraction: {what} {message}" for message in found
    ]


def test_schema_that_deviates_from_the_shape_is_reported() -> None:
    assert shape_faults("extraction", {"type": "object"}, {"type": "string"}) == [
        "schema: pattern extraction: argument `source` is missing",
        "result_schema: pattern extraction: the result must be of type object, not string",
    ]


def test_schema_that_only_references_itself_counts_as_a_schema_of_any_type() -> None:
    response = changed(RESPONSE, "evidence", {"$ref": "#/$defs/loop"}) | {"$defs": {"loop": {"$ref": "#/$defs/loop"}}}

    assert shape_faults("extraction", REQUEST, response) == [
        (
            "result_schema.properties.evidence: pattern extraction: member of the result `evidence` must be of type "
            "object, not any type"
        )
    ]


@pytest.mark.parametrize(
    ("pattern", "field", "name", "schema", "found"),
    [
        (Pattern.CLASSIFICATION, "result_schema", "band", {"enum": ["low", "high"]}, None),
        (Pattern.CLASSIFICATION, "result_schema", "band", {"const": "low"}, None),
        (Pattern.CLASSIFICATION, "result_schema", "band", {"type": "string"},
         "result_schema.properties.band: pattern classification: the bands are not exhaustive"),
        (Pattern.COMPOSITION, "result_schema", "state", {"const": "draft"}, None),
        *(
            (Pattern.COMPOSITION, "result_schema", "state", state,
             "result_schema.properties.state: pattern composition: the result is always a draft")
            for state in ({"enum": ["draft", "live"]}, {"type": "string"})
        ),
        (Pattern.APPROVAL_REQUEST, "schema_", "queue", None,
         "schema: pattern approval-request: has neither argument `queue` nor `principal`"),
        (Pattern.ACTION_STAGING, "schema_", "kind", {"const": "adjust_premium"}, None),
        *(
            (Pattern.ACTION_STAGING, "schema_", "kind", kind,
             f"schema.properties.action: pattern action-staging: {OTHER_KINDS}")
            for kind in ({"type": "string"}, {"enum": ["adjust_premium", "pay_all"]})
        ),
    ],
)  # fmt: skip
def test_tool_schema_that_violates_a_special_rule_of_its_pattern_is_reported(
    pattern: Pattern, field: str, name: str, schema: Any, found: str | None
) -> None:
    own = copy.deepcopy(getattr(TOOLS[pattern], field))
    members = own["properties"]["action"]["properties"] if name == "kind" else own["properties"]
    members[name] = schema
    if schema is None:
        del members[name]
    findings = list(shape_findings(TOOLS[pattern].model_copy(update={field: own})))

    assert [f"{'.'.join(map(str, one.path))}: {one.message}" for one in findings] == ([found] if found else [])


def test_staging_tool_that_lists_no_commit_tools_may_stage_any_kind_of_action() -> None:
    tool = TOOLS[Pattern.ACTION_STAGING]
    own = copy.deepcopy(tool.schema_)
    own["properties"]["action"]["properties"]["kind"] = {"type": "string"}

    assert list(shape_findings(tool.model_copy(update={"schema_": own, "commits": None}))) == []
