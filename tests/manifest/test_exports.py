"""Tests that an exported tool has all fields that a model needs and no other fields."""

import json
from typing import Any

import pytest

from pdp.manifest.effective import effective_manifest
from pdp.manifest.exports import ExportFormat, export_tools
from pdp.manifest.load import load_effective
from pdp.manifest.model import ActionRules, DeclaredTool, Governance, Manifest
from tests.support import ROOT

PAYMENTS = ROOT / "examples" / "payments"

# The text of the section "LLM payload (from manifest above)" of the tool registry document.
PAYLOAD = """
{
"tools": [
{ "name": "lookup_beneficiary", "parameters": { "payee_name": "string", "invoice_ref": "string" } },
{ "name": "validate_payment", "parameters": { "beneficiary_id": "string", "amount": "number", "source_account": "string", "reference": "string" } },
{ "name": "initiate_wire", "parameters": { "beneficiary_id": "string", "amount": "number", "source_account": "string", "reference": "string" } }
]
}
"""  # noqa: E501


def declared(**fields: Any) -> DeclaredTool:
    return DeclaredTool.model_validate({"name": "search_web", "schema": {"type": "object"}, **fields})


def exported(form: str, **fields: Any) -> Any:
    return export_tools([declared(**fields)], form)[0]


def test_plain_export_of_the_payments_example_equals_the_payload_in_the_registry_document() -> None:
    expected = json.loads(PAYLOAD)
    effective = load_effective(PAYMENTS / "manifest.json", PAYMENTS / "governance.yaml")

    assert json.dumps({"tools": export_tools(effective.tools.values(), "plain")}) == json.dumps(expected)


def test_tool_can_be_exported_in_each_supported_format() -> None:
    kinds = {
        "type": "array", "items": {"type": "string", "enum": ["page", "paper"]}, "default": ["page"],
        "description": "what to look for",
    }  # fmt: skip
    schema = {
        "type": "object",
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "$comment": "not for the model"}, "kinds": kinds, "$comment": {"type": "null"},
        },
        "$comment": "nor this",
    }  # fmt: skip
    parameters = {
        "type": "object",
        "required": ["query"],
        "properties": {"query": {"type": "string"}, "kinds": kinds, "$comment": {"type": "null"}},
        "additionalProperties": False,
    }
    fields = {"description": "Search the web.", "schema": schema}

    assert exported("openai", **fields) == {
        "type": "function",
        "function": {"name": "search_web", "description": "Search the web.", "parameters": parameters},
    }
    assert exported("anthropic", **fields) == {
        "name": "search_web", "description": "Search the web.", "input_schema": parameters,
    }  # fmt: skip
    assert exported("mcp", **fields) == {
        "name": "search_web", "description": "Search the web.", "inputSchema": parameters,
    }  # fmt: skip
    assert exported("plain", **fields) == {
        "name": "search_web", "parameters": {"query": "string", "kinds": "array", "$comment": "null"},
    }  # fmt: skip


def test_plain_export_names_the_types_of_arguments() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"enum": [1, 2]},
            "c": {"$ref": "#/$defs/C"},
            "d": {},
            "e": True,
            "f": {"type": "array"},
        },
        "$defs": {"C": {"type": "integer"}},
    }

    assert exported("plain", schema=schema)["parameters"] == {
        "a": "string | null", "b": "integer", "c": "integer", "d": "any", "e": "any", "f": "array",
    }  # fmt: skip


def test_exported_description_ends_with_the_invariant_texts_that_it_lacked() -> None:
    invariants = [
        {"id": "A", "rule": "Use one field only", "check": "true"},
        {"id": "B", "rule": "Bundled steps need web_search", "check": "true", "correct": {"set": {"web_search": True}}},
    ]

    said = exported("mcp", description="Search.\n- Use one field only", invariants=invariants)
    silent = exported("mcp", invariants=invariants)

    assert said["description"] == "Search.\n- Use one field only\n- Bundled steps need web_search"
    assert silent["description"] == "- Use one field only\n- Bundled steps need web_search"
    assert "description" not in exported("mcp")


MARK = "governance-only"
GOVERNED: dict[str, Any] = {
    "effect_class": "commit-high", "risk_tier": "high", "scopes": [MARK], "markings": [MARK], "purposes": [MARK],
    "idempotency": {"required": True, "ttl": "PT13H"}, "limits": [{"limit": MARK, "argument": "query"}],
    "resource": {"type": MARK, "id": MARK}, "context": {MARK: "$arguments.query"},
    "approval": {"approvers": [MARK], "quorum": 2, "expires": "PT13H"}, "provenance": {"required": ["query"]},
    "writes": "proposal", "sensitive": ["query"],
}  # fmt: skip
STATED: dict[str, Any] = {
    "id": MARK, "version": "13.13.13", "pdp_action": MARK, "type": "cli", "ontology_pin": MARK, "compensation": MARK,
    "timeout": "PT13H", "eval_pack": MARK, "sla": {"p50": "13ms"}, "safety": {"requires": [MARK]},
    "release": {"gate": "passed", "drift": "ok", "deprecation": MARK}, "config": [{"key": MARK}],
    "state": {"reads": [MARK]}, "result_schema": {"description": MARK}, "cli": {"argv": [MARK]},
}  # fmt: skip


@pytest.mark.parametrize("form", ExportFormat)
@pytest.mark.parametrize(("stated", "rules"), [(STATED | GOVERNED, {}), (STATED, GOVERNED), (GOVERNED, GOVERNED)])
def test_exports_never_show_governance_fields(
    form: ExportFormat, stated: dict[str, Any], rules: dict[str, Any]
) -> None:
    own = {"description": "Search.", "schema": {"type": "object", "properties": {"query": {"type": "string"}}}}
    tool = declared(**own, **stated)
    governance = Governance(actions={tool.action: ActionRules.model_validate(rules)})
    effective = effective_manifest(Manifest(manifest_version="1", tools=(tool,)), governance)
    shown = export_tools(effective.tools.values(), form)

    assert shown == export_tools([declared(**own)], form)
    assert MARK not in json.dumps(shown)
    assert "13" not in json.dumps(shown)
