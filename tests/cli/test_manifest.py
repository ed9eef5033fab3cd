"""`pdp manifest lint` and `pdp manifest export`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import pdp, pdp_process, written
from tests.support.payments import EXAMPLE

MANIFEST = EXAMPLE / "manifest.json"
GOVERNANCE = EXAMPLE / "governance.yaml"

# A manifest with one fault and one warning, and the messages that `pdp manifest lint` prints for this manifest.
FAULTY = """\
manifest_version: "1"
tools:
  - name: pay_bill
    description: Pay a bill
    schema: {type: object, properties: {amount: {type: number}}}
    scopes: [bills.pay]
    idempotency_required: true
    risk_tire: low
"""
FAULT = {
    "line": 8,
    "column": 5,
    "kind": "fault",
    "message": "unknown key `risk_tire`",
    "hint": "did you mean `risk_tier`?",
}
WARNING = {
    "line": 5,
    "column": 41,
    "kind": "warning",
    "message": "argument `amount` of `pay_bill` has no description",
    "hint": "describe it for the model",
}


# Lint


def test_lint_shows_met_and_missing_clauses_of_each_tool() -> None:
    done = pdp("manifest", "lint", MANIFEST, "-g", GOVERNANCE)
    assert (done.code, done.out) == (
        0,
        (
            "lookup_beneficiary meets 2 of 6 clauses: idempotent, audited\n"
            "  typed         misses `result_schema`, `ontology_pin`, `ontology` in its manifest\n"
            "  versioned     misses `version`, `agents` that pin it\n"
            "  permissioned  misses `markings`, `purposes`\n"
            "  eval-gated    misses `release`\n"
            "validate_payment meets 2 of 6 clauses: idempotent, audited\n"
            "  typed         misses `result_schema`, `ontology_pin`, `ontology` in its manifest\n"
            "  versioned     misses `version`, `agents` that pin it\n"
            "  permissioned  misses `markings`, `purposes`\n"
            "  eval-gated    misses `release`\n"
            "initiate_wire meets 2 of 6 clauses: idempotent, audited\n"
            "  typed         misses `result_schema`, `ontology_pin`, `ontology` in its manifest\n"
            "  versioned     misses `version`, `agents` that pin it\n"
            "  permissioned  misses `effect_class`, `markings`, `purposes`\n"
            "  eval-gated    misses `release`\n"
            f"{MANIFEST}: no fault, 10 warnings\n"
        ),
    )
    places = re.findall(
        r"^\S+manifest\.json:([0-9]+):11: warning: argument `\w+` of `\w+` has no description$", done.err, re.MULTILINE
    )
    assert places == ["14", "17", "38", "41", "44", "47", "68", "71", "74", "77"]


def test_strict_lint_treats_warnings_as_faults() -> None:
    done = pdp("manifest", "lint", MANIFEST, "-g", GOVERNANCE, "--strict")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == f"error: 10 faults in {MANIFEST}"
    assert "warning" not in done.err


def test_lint_shows_faults_with_location(tmp_path: Path) -> None:
    file = written(tmp_path / "manifest.yaml", FAULTY)
    assert pdp("manifest", "lint", file) == (
        2,
        "",
        (
            f"{file}:8:5: unknown key `risk_tire`\n"
            "        risk_tire: low\n"
            "        ^\n"
            "    hint: did you mean `risk_tier`?\n"
            f"error: 1 fault in {file}\n"
        ),
    )


@pytest.mark.parametrize(
    ("text", "code", "faults"),
    [(FAULTY, 2, [FAULT]), (FAULTY.replace("tire", "tier"), 0, [WARNING])],
    ids=["fault", "warning"],
)
def test_lint_prints_json(tmp_path: Path, text: str, code: int, faults: list[dict[str, Any]]) -> None:
    file = written(tmp_path / "manifest.yaml", text)
    contract = {
        "tool": "pay_bill",
        "missing": {
            "typed": ["`result_schema`", "`ontology_pin`", "`ontology` in its manifest"],
            "versioned": ["`version`", "`agents` that pin it"],
            "idempotent": [],
            "permissioned": ["`effect_class`", "`markings`", "`purposes`"],
            "audited": [],
            "eval-gated": ["`eval_pack`", "`release`"],
        },
    }
    done = pdp("manifest", "lint", file, "--json")
    assert (done.code, done.json, done.err) == (
        code,
        {"faults": [{"file": str(file), **fault} for fault in faults], "tools": [] if code else [contract]},
        "",
    )


def test_lint_shows_every_one_of_40_faults(tmp_path: Path) -> None:
    tools = [{"name": f"tool_{at}", "schema": {"type": "object"}, "risk_tier": f"tier_{at}"} for at in range(40)]
    manifest = {"manifest_version": "1", "tools": tools}
    file = written(tmp_path / "manifest.json", json.dumps(manifest, indent=1))
    expected = {f"`risk_tier` must be one of low, medium, high, not `tier_{at}`" for at in range(40)}
    lint, as_json = pdp("manifest", "lint", file), pdp("manifest", "lint", file, "--json")
    assert (lint.code, as_json.code) == (2, 2)
    assert set(re.findall(r"^\S+:[0-9]+:[0-9]+: (.*)$", lint.err, re.MULTILINE)) == expected
    assert {fault["message"] for fault in as_json.json["faults"]} == expected
    assert lint.err.splitlines()[-1] == f"error: 40 faults in {file}"
    # `pdp manifest export` reports the same faults as `pdp manifest lint`.
    assert pdp("manifest", "export", file) == lint


@pytest.mark.process
def test_lint_output_lines_are_not_cut_in_a_narrow_terminal(tmp_path: Path) -> None:
    name = "look_up_a_beneficiary_by_a_name_that_is_longer_than_the_terminal_is_wide"
    tool = {"name": name, "schema": {"type": "object"}, "risk_tier": "low", "scopes": ["a"]}
    file = written(tmp_path / "manifest.json", {"manifest_version": "1", "tools": [tool]})
    done = pdp_process("manifest", "lint", file, COLUMNS="40")
    assert done.out.splitlines()[0] == f"{name} meets 1 of 6 clauses: audited"


# Export

# The example of the section "Manifest → LLM → PEP" in the tool registry document.
PLAIN = {
    "tools": [
        {"name": "lookup_beneficiary", "parameters": {"payee_name": "string", "invoice_ref": "string"}},
        *(
            {
                "name": name,
                "parameters": {
                    "beneficiary_id": "string",
                    "amount": "number",
                    "source_account": "string",
                    "reference": "string",
                },
            }
            for name in ("validate_payment", "initiate_wire")
        ),
    ]
}


@pytest.mark.parametrize("options", [(), ("--format", "plain")])
def test_export_in_plain_format_matches_the_registry_document(options: tuple[str, ...]) -> None:
    done = pdp("manifest", "export", MANIFEST, *options)
    assert (done.code, done.json, done.err) == (0, PLAIN, "")


@pytest.mark.parametrize(
    ("form", "key"), [("openai", "function"), ("anthropic", "input_schema"), ("mcp", "inputSchema")]
)
def test_manifest_is_exported_in_other_formats(form: str, key: str) -> None:
    done = pdp("manifest", "export", MANIFEST, "--format", form)
    assert (done.code, [key in tool for tool in done.json["tools"]]) == (0, [True] * 3)


def test_manifest_is_read_from_standard_input() -> None:
    text = MANIFEST.read_bytes()
    assert pdp("manifest", "export", "-", stdin=text).json == PLAIN
    faulty = pdp("manifest", "lint", "-", stdin=b"[]")
    assert (faulty.code, faulty.err.splitlines()[0]) == (2, "<stdin>:1:1: a manifest must be a mapping")
    twice = pdp("manifest", "lint", "-", "-g", "-", stdin=text)
    assert twice == (
        2,
        "",
        "error: standard input (-) is closed, empty, or was read already\n    hint: pipe a file in, use - once\n",
    )


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    text = FAULTY.replace("risk_tire", '"\\e[2J\\x9b"')
    done = pdp("manifest", "lint", written(tmp_path / "manifest.yaml", text))
    assert done.code == 2
    assert [letter for letter in done.err if not letter.isprintable() and letter != "\n"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("lint",), "no manifest given"),
        (("export", MANIFEST, "--format", "yaml"), "'yaml' is not one of 'plain', 'openai', 'anthropic', 'mcp'"),
        (("lnit", MANIFEST), "No such command 'lnit'"),
    ],
    ids=["no file", "unknown form", "unknown command"],
)
def test_invalid_usage_is_explained(arguments: tuple[object, ...], complaint: str) -> None:
    done = pdp("manifest", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
