"""Tests of the rules for manifest entries that are not tools (tool pattern library, section 9.4)."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import FileFaultsError
from pdp.manifest.effective import effective_tool, made_of
from pdp.manifest.load import load_effective, load_manifest
from pdp.manifest.model import DeclaredTool
from pdp.manifest.rules.forbidden import forbidden_findings, staged_commits
from pdp.manifest.rules.texts import LONGEST_NAME
from pdp.manifest.versions import manifest_diff
from tests.support import ROOT

FREE = {"type": "object", "properties": {"prompt": {"type": "string"}}}


def declared(**fields: Any) -> DeclaredTool:
    return DeclaredTool.model_validate({"name": "do_it", "schema": {"type": "object"}, **fields})


def said(*staged: str, **fields: Any) -> list[tuple[str, str]]:
    findings = forbidden_findings(effective_tool(declared(**fields), None), staged, sound=True, decided=True)
    return [(".".join(map(str, finding.path)), finding.message.rpartition("(")[2].rstrip(")")) for finding in findings]


def untyped(**fields: Any) -> list[str]:
    findings = forbidden_findings(effective_tool(declared(**fields), None), (), sound=True, decided=True)
    untyped = (finding for finding in findings if finding.rule == "not_a_tool.untyped")
    return [f"{'.'.join(map(str, finding.path))}: {finding.message}" for finding in untyped]


def test_argument_or_result_of_any_type_is_rejected() -> None:
    anything = {
        "type": "object",
        "properties": {"a": {}, "b": True, "c": {"type": "object", "properties": {"d": {"description": "any"}}}},
    }
    assert untyped(schema=anything, result_schema={}) == [
        "schema.properties.a: argument `a` may have any type (not_a_tool.untyped)",
        "schema.properties.b: argument `b` may have any type (not_a_tool.untyped)",
        "schema.properties.c: argument `c.d` may have any type (not_a_tool.untyped)",
        "result_schema: the result may have any type (not_a_tool.untyped)",
    ]


EVERY = ["array", "boolean", "null", "number", "object", "string"]


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        pytest.param({"anyOf": [{"type": "string", "enum": ["x"]}, {}]}, "a", id="a branch"),
        pytest.param({"oneOf": [{"type": kind} for kind in EVERY]}, "a", id="a branch for each type"),
        pytest.param({"anyOf": [{"type": EVERY[:3]}, {"type": EVERY[3:]}]}, "a", id="all types in two branches"),
        pytest.param({"type": EVERY}, "a", id="all types"),
        pytest.param({"type": [*EVERY, "integer"]}, "a", id="all types and one more"),
        pytest.param({"allOf": [{"description": "x"}, {}]}, "a", id="a conjunction of nothing"),
        pytest.param({"not": {"type": "string"}}, "a", id="all but"),
        pytest.param({"minLength": 3}, "a", id="a bound without a type"),
        pytest.param({"$ref": "#/$defs/open"}, "a", id="a reference"),
        pytest.param({"$ref": "#/$defs/loop"}, "a", id="a reference to itself"),
        pytest.param({"anyOf": [*({"const": at} for at in range(40)), {}]}, "a", id="one of many branches"),
        pytest.param({"type": "array", "items": {}}, "a[]", id="items"),
        pytest.param({"type": "array", "items": True}, "a[]", id="true items"),
        pytest.param({"type": "array", "prefixItems": [{}], "items": False}, "a[]", id="the first item"),
        pytest.param({"type": "array", "items": {"anyOf": [{"type": "null"}, {}]}}, "a[]", id="a branch of items"),
        pytest.param({"type": "object", "additionalProperties": True}, "a.*", id="true members"),
        pytest.param({"type": "object", "additionalProperties": {}}, "a.*", id="members"),
        pytest.param({"type": "object", "patternProperties": {".*": {}}}, "a.*", id="members of any name"),
        pytest.param({"type": "array", "prefixItems": [{}]}, "a[]", id="the first item alone"),
        pytest.param({"type": "array", "unevaluatedItems": True}, "a[]", id="unevaluated items"),
        pytest.param({"type": "object", "unevaluatedProperties": True}, "a.*", id="unevaluated members"),
        pytest.param(
            {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "allOf": [{"additionalProperties": {}}]},
            "a.*",
            id="members beside a pattern",
        ),
        pytest.param({"type": ["object", "null"], "properties": {"b": {}}}, "a.b", id="a member"),
        pytest.param({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"b": {}}}]}, "a.b", id="inner"),
    ],
)
def test_argument_with_a_branch_of_any_type_is_rejected(argument: dict[str, Any], path: str) -> None:
    definitions = {"open": {"title": "anything"}, "loop": {"$ref": "#/$defs/loop"}}
    schema = {"type": "object", "properties": {"a": argument}, "$defs": definitions}

    assert untyped(schema=schema) == [f"schema.properties.a: argument `{path}` may have any type (not_a_tool.untyped)"]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"additionalProperties": True}, "*"),
        ({"unevaluatedProperties": True, "properties": {"b": {"const": 1}}}, "*"),
        ({"patternProperties": {"^x": {}}}, "*"),
        ({"if": {"required": ["b"]}, "then": {"properties": {"a": {}}}}, "a"),
        ({"if": {"required": ["b"]}, "else": {"additionalProperties": {}}}, "*"),
        ({"allOf": [{"dependentSchemas": {"b": {"properties": {"a": {}}}}}]}, "a"),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {"type": "string"}}}]}, "a"),
    ],
)
def test_unnamed_argument_of_any_type_is_rejected(schema: dict[str, Any], path: str) -> None:
    assert untyped(schema={"type": "object", **schema}) == [
        f"schema: argument `{path}` may have any type (not_a_tool.untyped)"
    ]


TREE = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}


@pytest.mark.parametrize(
    "argument",
    [
        {"enum": ["x", 1, None, {}, []]},
        {"type": ["string", "number", "boolean", "null"]},
        {"allOf": [{"type": "string"}, {"minLength": 1}]},
        {"anyOf": [{"const": at, "title": str(at)} for at in range(40)]},
        {"type": "string", "anyOf": [{"pattern": f"^{at}$"} for at in range(40)]},
        {"$ref": "#/$defs/tree"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {
            "type": "object",
            "properties": {"b": {"type": "string"}},
            "allOf": [{"if": {"required": ["b"]}, "then": {"properties": {"b": {"minLength": 1}}}}],
        },
        {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "allOf": [{"if": {}, "then": {"additionalProperties": {"minLength": 1}}}],
        },
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        # Lists and objects with any content are accepted, because the prescribed schemas of the tool patterns have such
        # members.
        {"type": "array"},
        {"type": "object"},
    ],
)
def test_argument_with_declared_types_is_accepted(argument: dict[str, Any]) -> None:
    assert untyped(schema={"type": "object", "properties": {"a": argument}, "$defs": {"tree": TREE}}) == []


def test_recursive_schema_definition_with_many_references_is_checked_once() -> None:
    def tree(leaf: dict[str, Any]) -> dict[str, Any]:
        node = {"type": "object", "properties": {**{key: {"$ref": "#/$defs/node"} for key in "abcdefgh"}, "leaf": leaf}}
        return {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}

    assert untyped(schema=tree({"type": "string"})) == []
    assert untyped(schema=tree({})) == ["schema.properties.x: argument `x.leaf` may have any type (not_a_tool.untyped)"]


@pytest.mark.parametrize("effects", [{"effect_class": "stage"}, {"safety": {"side_effects": "write"}}, {}])
@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ({"type": "array"}, "a"),
        ({"type": "object"}, "a"),
        ({"type": ["array", "null"]}, "a"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "a"),
        ({"type": "array", "unevaluatedItems": False, "contains": {"type": "object"}}, "a"),
        ({"type": "object", "patternProperties": {"^x": {"type": "string"}}}, "a"),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "a"),
        ({"type": "array", "items": {"type": "object"}}, "a[]"),
        ({"type": "object", "properties": {"b": {"type": "array"}}}, "a.b"),
    ],
)
def test_tool_with_effects_must_declare_the_types_of_items_and_members(
    argument: dict[str, Any], path: str, effects: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": argument, "b": {"type": "integer"}}}
    found = forbidden_findings(effective_tool(declared(schema=schema, **effects), None), (), sound=True, decided=True)

    message = f"argument `{path}` of a tool with effects may have any content (not_a_tool.untyped)"
    assert [(one.path, one.message) for one in found] == ([(("schema", "properties", "a"), message)] if effects else [])


def test_schema_with_too_many_branches_is_rejected_for_tools_with_effects() -> None:
    branches = [{"properties": {f"b{at}": {}}, "title": str(at)} for at in range(65)]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "anyOf": branches}
    findings = forbidden_findings(
        effective_tool(declared(schema=schema, effect_class="stage"), None), (), sound=True, decided=True
    )

    message = "the schema has too many or too deep branches, so one may name any argument of a tool with effects"
    assert [(finding.path, finding.message) for finding in findings] == [
        (("schema",), f"{message} (not_a_tool.untyped)")
    ]
    required = [{"required": ["n"], "title": str(at)} for at in range(65)]
    assert said(schema={**schema, "anyOf": required}, effect_class="stage") == []


def test_payload_argument_of_a_staging_tool_may_be_untyped() -> None:
    members = {"kind": {"type": "string"}, "payload": {"type": "object"}, "more": {"type": "object"}}
    schema = {"type": "object", "properties": {"action": {"type": "object", "properties": members}}}
    entry = effective_tool(declared(schema=schema, pattern="action-staging", effect_class="stage"), None)

    assert [one.message for one in forbidden_findings(entry, (), sound=True, decided=True)] == [
        "argument `action.more` of a tool with effects may have any content (not_a_tool.untyped)"
    ]


def test_result_member_of_any_type_is_rejected_but_open_results_are_accepted() -> None:
    result = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"anyOf": [{"type": "null"}, {}]}}}
    assert untyped(result_schema={**result, "additionalProperties": True}) == [
        "result_schema.properties.b: result `b` may have any type (not_a_tool.untyped)"
    ]


def test_candidate_argument_of_a_validation_may_have_any_type() -> None:
    schema = {"type": "object", "properties": {"candidate": {}, "other": {}}}
    other = "schema.properties.other: argument `other` may have any type (not_a_tool.untyped)"

    assert untyped(schema=schema, pattern="validation") == [other]
    assert untyped(schema=schema, pattern="conversion") == [
        "schema.properties.candidate: argument `candidate` may have any type (not_a_tool.untyped)",
        other,
    ]


@pytest.mark.parametrize(
    ("effects", "refused"),
    [
        ({"effect_class": "stage"}, True), ({"effect_class": "commit-low"}, True),
        ({"effect_class": "commit-high"}, True), ({"safety": {"side_effects": "write"}}, True),
        ({"effect_class": "commit-high", "safety": {"side_effects": "external"}}, True),
        ({"safety": {"side_effects": "read"}}, False),
        ({"effect_class": "read-internal"}, False), ({}, False),
    ],
)  # fmt: skip
def test_single_free_text_argument_is_rejected_for_tools_with_effects(effects: dict[str, Any], refused: bool) -> None:
    assert said(schema=FREE, **effects) == ([("schema.properties.prompt", "not_a_tool.free_text")] if refused else [])


@pytest.mark.parametrize(
    ("argument", "free"),
    [
        ({"type": "string"}, True),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
        ({"type": "string", "maxLength": LONGEST_NAME + 1}, True),
        ({"type": "string", "minLength": 1}, True),
        ({"type": "object", "properties": {"text": {"type": "string"}}}, True),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False}, True),
        ({"type": "string", "pattern": ".*"}, True),
        ({"type": "string", "pattern": "^.+$"}, True),
        ({"type": "string", "pattern": "^[\\s\\S]*$"}, True),
        ({"type": "string", "pattern": "^[^x]*$"}, True),
        ({"type": "string", "pattern": "^OK .{0,}$"}, True),
        ({"type": "string", "pattern": "^[a-z ]+$"}, True),
        ({"type": "string", "pattern": "c-[0-9]"}, True),
        ({"type": "string", "pattern": "^c-[0-9]+|d-[0-9]+$"}, True),
        ({"type": "string", "format": "regex"}, True),
        ({"type": "string", "pattern": ".*", "format": "uuid"}, False),
        ({"type": "string", "pattern": "^(c|d)-[0-9]+$"}, False),
        ({"type": "string", "pattern": "^[a-z_]+\\.[a-z]{2,}$"}, False),
        ({"type": "array", "items": {"type": "string", "maxLength": 40}}, False),
        ({"type": "array", "items": {"enum": ["open", "close"]}}, False),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ({"type": "string", "maxLength": LONGEST_NAME}, False),
        ({"type": "string", "pattern": "^c-[0-9]+$"}, False),
        ({"type": "string", "format": "uuid"}, False),
        ({"enum": ["open", "close"]}, False),
        ({"const": "go"}, False),
        ({"type": "integer"}, False),
        ({"type": "object", "properties": {"text": {"type": "string"}, "to": {"type": "string"}}}, False),
    ],
)
def test_free_text_is_recognized_by_its_schema(argument: dict[str, Any], free: bool) -> None:
    found = said(schema={"type": "object", "properties": {"one": argument}}, effect_class="stage")
    assert found == ([("schema.properties.one", "not_a_tool.free_text")] if free else [])


def test_free_text_argument_beside_another_argument_is_accepted() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}}
    assert said(schema=schema, effect_class="stage") == []


def requires(capability: str, **fields: Any) -> dict[str, Any]:
    return {"safety": {"requires": ["clock", capability]}, **fields}


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        *(
            (requires(name), "safety.requires.1")
            for name in ("network", "Network", "database", "sql", "network.http", "database:claims")
        ),
        (requires("network", effect_class="pure"), "safety.requires.1"),
        (requires("network", effect_class="read-external"), None),
        (requires("networking_group"), None),
        (requires("sqlite_file"), None),
        *(
            ({"type": "cli", "cli": {"argv": [program, "-c", "{query}"]}}, at)
            for program, at in [("/usr/bin/psql", "cli.argv.0"), ("curl", "cli.argv.0"), ("grep", None)]
        ),
    ],
)
def test_tool_with_direct_access_needs_an_effect_class(fields: dict[str, Any], at: str | None) -> None:
    assert said(**fields) == ([(at, "not_a_tool.direct_access")] if at else [])


@pytest.mark.parametrize(
    ("fields", "staged", "refused"),
    [
        pytest.param({"effect_class": "commit-high"}, (), False, id="a step-up stages it"),
        pytest.param({"effect_class": "commit-high", "approval": {"unless_within_limits": False}}, (), False,
            id="said so"),
        pytest.param({"effect_class": "commit-high", "approval": {"unless_within_limits": True}}, (), True,
            id="excused"),
        pytest.param({"effect_class": "commit-high", "approval": {"unless_within_limits": True}}, ("do_it",), False,
            id="staged"),
        pytest.param({"effect_class": "commit-high", "approval": {"unless_within_limits": True}}, ("other",), True,
            id="other"),
        pytest.param({"effect_class": "commit-low"}, (), False, id="internal"),
        pytest.param({"effect_class": "stage", "approval": {"unless_within_limits": True}}, (), False, id="no commit"),
        pytest.param({"risk_tier": "high"}, (), False, id="no effect class, as in the registry document"),
    ],
)  # fmt: skip
def test_commit_tool_without_approval_needs_a_tool_that_stages_its_action(
    fields: dict[str, Any], staged: tuple[str, ...], refused: bool
) -> None:
    assert said(*staged, **fields) == ([("name", "not_a_tool.unstaged_commit")] if refused else [])


@pytest.mark.parametrize("effects", [{"effect_class": "commit-low"}, {"effect_class": "stage"}, {"scopes": ["x"]}])
def test_tool_with_external_side_effects_needs_the_class_commit_high(effects: dict[str, Any]) -> None:
    fields = {**effects, "safety": {"side_effects": "external"}}
    assert said(**fields) == [("safety.side_effects", "not_a_tool.unstaged_commit")]
    assert said(**fields | {"effect_class": "commit-high"}) == []


TEXTS = {"message": {"type": "string"}, "to": {"type": "string"}}
REFUSED: dict[str, dict[str, Any]] = {
    "not_a_tool.untyped": {"schema": {"type": "object", "properties": {"a": {}}}},
    "not_a_tool.free_text": {"schema": FREE, "effect_class": "stage"},
    "not_a_tool.direct_access": {"safety": {"requires": ["network"]}},
    "not_a_tool.unstaged_commit": {"safety": {"side_effects": "external"}, "idempotency": {"required": True}},
}


@pytest.mark.parametrize("rule", REFUSED)
def test_violation_that_the_governance_file_accepts_is_no_fault_and_appears_in_the_diff(
    tmp_path: Path, rule: str
) -> None:
    entry = {"name": "do_it", "schema": {"type": "object", "properties": TEXTS}, "scopes": ["x"], **REFUSED[rule]}
    manifest, governance = tmp_path / "manifest.json", tmp_path / "governance.json"
    manifest.write_text(json.dumps({"manifest_version": "1", "tools": [entry]}))
    others = {"accepts": {name: "elsewhere" for name in REFUSED if name != rule}}
    for rules in ({}, others):
        governance.write_text(json.dumps({"actions": {"do_it": rules}}))
        with pytest.raises(FileFaultsError) as caught:
            load_effective(manifest, governance)
        assert [rule in fault.message for fault in caught.value.faults] == [True]

    governance.write_text(json.dumps({"actions": {"do_it": {"accepts": {rule: "a person reads it"}}}}))
    accepted = load_effective(manifest, governance)
    assert accepted.document["tools"]["do_it"]["accepts"] == {rule: "a person reads it"}

    strict = made_of("1", {"do_it": accepted.tools["do_it"].model_copy(update={"accepts": None})}, agents=None)
    (change,) = manifest_diff(strict, accepted).tools[0].governance
    assert (change.name, change.direction, change.what) == ("accepts", "loosens", f"added {rule}")


def test_field_accepts_is_validated_and_allowed_only_in_the_governance_file(tmp_path: Path) -> None:
    manifest, governance = tmp_path / "manifest.json", tmp_path / "governance.json"
    entry = {"name": "do_it", "schema": FREE, "scopes": ["x"], "accepts": {"not_a_tool.free_text": "x"}}
    manifest.write_text(json.dumps({"manifest_version": "1", "tools": [entry]}))
    governance.write_text(
        json.dumps({"actions": {"do_it": {"accepts": {"not_a_tool.any": "x", "not_a_tool.untyped": ""}}}})
    )
    with pytest.raises(FileFaultsError) as caught:
        load_effective(manifest, governance)

    assert [fault.message for fault in caught.value.faults] == [
        f"key `not_a_tool.any` must be one of {', '.join(REFUSED)}, not `not_a_tool.any`",
        "`accepts.not_a_tool.untyped` must not be empty",
        "unknown key `accepts`",
    ]


def test_only_tools_of_the_pattern_action_staging_stage_commits() -> None:
    tools = [
        declared(name="stage_it", pattern="action-staging", commits=["do_it"]),
        declared(name="draft_it", pattern="composition", commits=["do_that"]),
        declared(name="stage_any", pattern="action-staging"),
    ]
    assert staged_commits(tools) == {"do_it"}


# All faults of a file at once, with locations

FAULTY = """\
manifest_version: "1"
tools:
  - name: lookup_customer
    description: Look a customer up
    pattern: lookup
    schema: {type: object, required: [identifier], properties: {identifier: {type: integer}}}
    result_schema: {type: object}
  - name: run_anything
    description: Do whatever
    effect_class: stage
    idempotency: {required: true}
    schema: {type: object, properties: {prompt: {type: string}}}
  - name: query_claims
    description: Query the claims
    safety: {requires: [database]}
    schema: {type: object, properties: {where: {}}}
  - name: pay_bill
    description: Pay a bill
    effect_class: commit-high
    idempotency: {required: true}
    approval: {unless_within_limits: true}
    schema: {type: object, properties: {amount: {type: number}}}
"""


def test_each_forbidden_manifest_entry_is_reported_with_its_location() -> None:
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", manifest_text=FAULTY.encode())
    assert [(fault.place.line, fault.place.column, fault.message) for fault in caught.value.faults] == [
        (6, 13, "pattern lookup: argument `source` is missing"),
        (6, 77, "pattern lookup: argument `identifier` must be of type string, not integer"),
        (12, 49, "the only argument `prompt` of a tool with effects may be any text (not_a_tool.free_text)"),
        (15, 25, "database is accessed without an effect class (not_a_tool.direct_access)"),
        (16, 48, "argument `where` may have any type (not_a_tool.untyped)"),
        (17, 11,
         "`pay_bill` commits without approval within limits, and no tool stages it (not_a_tool.unstaged_commit)"),
    ]  # fmt: skip


def test_governance_file_can_supply_a_missing_effect_class() -> None:
    governance = b"actions: {query_claims: {effect_class: read-internal, scopes: [claims.read]}}"
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.yaml", "g.yaml", manifest_text=FAULTY.encode(), governance_text=governance)
    assert "direct_access" not in str(caught.value)


def test_governance_file_cannot_change_the_effect_class_of_a_pattern() -> None:
    manifest = (ROOT / "examples/underwriting/manifest.yaml").read_bytes()
    rules = b"actions:\n  convert_premium: {effect_class: commit-high}\n"
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.yaml", "g.yaml", manifest_text=manifest, governance_text=rules)

    assert [(fault.place.file, fault.place.line, fault.message) for fault in caught.value.faults] == [
        ("g.yaml", 2, "effect class commit-high contradicts pattern conversion, which requires pure")
    ]
