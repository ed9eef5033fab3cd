"""Shapes and what is not a tool, when a manifest is loaded: every fault at once, each with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdp.errors import FileFaultsError
from pdp.manifest.load import load_effective, load_manifest
from tests.support import ROOT
from tests.support.command_line import pdp, written

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


def test_every_fault_stands_at_its_place() -> None:
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", text=FAULTY.encode())
    assert [(fault.place.line, fault.place.column, fault.message) for fault in caught.value.faults] == [
        (6, 13, "pattern lookup: argument `source` is missing"),
        (6, 77, "pattern lookup: argument `identifier` must be of type string, not integer"),
        (12, 49, "argument `prompt` is the only one of a tool with effects, and any text (not_a_tool.free_text)"),
        (15, 25, "database is reached without an effect class (not_a_tool.direct_access)"),
        (16, 48, "argument `where` may be anything (not_a_tool.untyped)"),
        (
            17,
            11,
            "`pay_bill` commits without approval within limits, and nothing stages it (not_a_tool.unstaged_commit)",
        ),
    ]


def test_the_governance_file_may_state_what_is_missing() -> None:
    governance = b"actions: {query_claims: {effect_class: read-internal, scopes: [claims.read]}}"
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.yaml", "g.yaml", manifest_text=FAULTY.encode(), governance_text=governance)
    assert "direct_access" not in str(caught.value)


@pytest.mark.parametrize("example", ["payments/manifest.json", "rag/manifest.json", "registry/manifest.yaml"])
def test_the_documents_own_manifests_go_on_loading(example: str) -> None:
    assert load_manifest(ROOT / "examples" / example).tools


EXPECTED = (
    "pay_bill changed, no version -> no version",
    "  unclear  timeout: PT1S -> not stated",
    "1 of the tools differ, no versions are missing a bump",
    "",
)


def test_the_command_compares_two_manifests(tmp_path: Path) -> None:
    entry = {"name": "pay_bill", "schema": {"type": "object"}, "risk_tier": "low"}
    old, new = (
        written(tmp_path / name, json.dumps({"manifest_version": "1", "tools": [{**entry, **more}]}))
        for name, more in (("old.json", {"timeout": "PT1S"}), ("new.json", {}))
    )

    shown = pdp("manifest", "diff", old, new)
    assert shown == (0, "\n".join(EXPECTED), "")
    assert pdp("manifest", "diff", old, new, "--fail-on", "unclear").code == 1
    assert pdp("manifest", "diff", old, tmp_path / "none.json").code == 2


CONVERSION = """\
manifest_version: "1"
tools:
  - name: convert_currency
    pattern: conversion
    scopes: [rates]
    risk_tier: low
    schema:
      type: object
      required: [value, target]
      properties:
        value:
          type: object
          required: [amount, currency]
          properties: {amount: {type: number}, currency: {type: string}}
        target: {type: object, required: [currency], properties: {currency: {type: string}}}
    result_schema:
      type: object
      required: [amount, rateSource, asOf]
      properties: {amount: {type: number}, rateSource: {type: object}, asOf: {type: string}}
"""


def test_the_governance_file_cannot_give_a_pattern_another_class() -> None:
    rules = b"actions:\n  convert_currency: {effect_class: commit-high}\n"
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.yaml", "g.yaml", manifest_text=CONVERSION.encode(), governance_text=rules)

    assert [(fault.place.file, fault.place.line, fault.message) for fault in caught.value.faults] == [
        (
            "g.yaml",
            2,
            "effect class commit-high disagrees with pattern conversion of the manifest, which is pure",
        )
    ]
