"""Tests of loading manifests and governance files: all faults are reported with the location of each fault."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdp.documents import read_document
from pdp.errors import Fault, FileFaultsError
from pdp.manifest.fields import EffectClass
from pdp.manifest.load import load_both, load_effective, load_manifest
from pdp.manifest.model import Governance, Idempotency, Release
from pdp.manifest.rules.rules import PEP_CONTEXT
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
PAYMENTS = EXAMPLES / "payments"


def manifest_text(*tools: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"manifest_version": "1", **fields, "tools": list(tools)}).encode()


def tool(**fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"amount": {"type": "number", "description": "In euros."}}}
    base = {
        "name": "pay_bill",
        "description": "Pay a bill.",
        "schema": schema,
        "scopes": ["bills.pay"],
        "risk_tier": "low",
    }
    return {name: value for name, value in {**base, **fields}.items() if value is not None}


def faults(text: bytes, *, strict: bool = False) -> set[str]:
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.json", manifest_text=text, strict=strict)
    assert not any(fault.warning for fault in caught.value.faults)
    return {shown(fault) for fault in caught.value.faults}


def warnings(text: bytes) -> set[str]:
    found: list[Fault] = []
    load_manifest("m.json", manifest_text=text, warnings=found)
    return {shown(fault) for fault in found}


def shown(fault: Fault) -> str:
    return f"{fault.message} | {fault.hint}" if fault.hint else fault.message


def load_governance(path: str, *, text: bytes) -> Governance:
    _, governance = load_both("m.json", path, manifest_text=manifest_text(tool()), governance_text=text)
    assert governance is not None
    return governance


# Files that are copied from the documents


def test_payments_manifest_printed_in_the_registry_document_loads() -> None:
    manifest = load_manifest(PAYMENTS / "manifest.json")

    assert manifest.manifest_version == "2026.07.1"
    assert [(one.name, one.action, one.risk_tier) for one in manifest.tools] == [
        ("lookup_beneficiary", "lookup_beneficiary", "low"),
        ("validate_payment", "validate_payment", "medium"),
        ("initiate_wire", "initiate_wire", "high"),
    ]
    assert [one.idempotency for one in manifest.tools] == [None, None, Idempotency(required=True)]
    assert manifest.tools[2].schema_["properties"]["amount"] == {"type": "number"}


def test_tool_record_printed_in_the_registry_document_loads() -> None:
    manifest = load_manifest(EXAMPLES / "registry" / "manifest.yaml")

    (record,) = manifest.tools
    assert manifest.manifest_version == "1.2.0"
    assert (record.name, record.id) == ("lookup_policyholder", "tool.underwriting.lookup_policyholder")
    assert record.effect_class is EffectClass.READ_EXTERNAL
    assert record.ontology_pin == "2026.1"
    assert record.markings == ("pii.medium", "regulated.kvkk")
    assert record.idempotency == Idempotency(required=True, key="derive(args)", ttl="PT24H")
    assert record.sla == {"p50": "200ms", "p99": "1.5s"}
    assert record.eval_pack == "pack.tool.lookup_policyholder.1.2.0"
    assert record.release == Release(gate="passed", drift="ok")
    assert list(record.schema_["properties"]) == ["identifier", "source", "asOf"]
    assert record.schema_["properties"]["source"]["$ref"] == "#/$defs/ontology_SoRRef"
    assert record.schema_["$defs"]["ontology_SoRRef"]["$ref"] == "#/$defs/types_SoRRef"
    assert record.result_schema is not None
    assert record.result_schema["required"] == ["policyholder"]


def test_signature_may_be_a_file_in_the_manifest_folder(tmp_path: Path) -> None:
    signature = {"request": {"type": "object", "properties": {"a": {"type": "string"}}}, "response": {"type": "object"}}
    inline, manifest, file = (tmp_path / name for name in ("inline.json", "sub/manifest.json", "sub/x/lookup.json"))
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(signature))
    for path, stated in ((inline, signature), (manifest, "x/lookup.json")):
        path.write_text(json.dumps({"id": "tool.a.look_up", "version": "1.0.0", "signature": stated}))
    assert load_effective(manifest).digest == load_effective(inline).digest

    file.write_text(json.dumps({**signature, "response": {"type": "array", "items": {"type": "string"}}}))
    assert load_effective(manifest).digest != load_effective(inline).digest

    file.write_text('{"request": ')
    with pytest.raises(FileFaultsError) as caught:
        load_manifest(manifest)
    assert {fault.place.file for fault in caught.value.faults} == {str(file)}

    (tmp_path / "out.json").write_text(json.dumps(signature))
    file.unlink()
    file.symlink_to(tmp_path / "out.json")
    for outside in ("x/lookup.json", "../out.json", str(tmp_path / "out.json")):
        manifest.write_text(json.dumps({"id": "tool.a.look_up", "version": "1.0.0", "signature": outside}))
        with pytest.raises(FileFaultsError, match="not found"):
            load_manifest(manifest)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ([{"id": "tool.claims.look_up"}, {"id": "tool.risk.find"}], ["look_up", "find"]),
        (
            [{"id": "tool.claims.look_up"}, {"id": "tool.risk.look_up", "name": "look_up_risk"}],
            ["look_up", "look_up_risk"],
        ),
    ],
)
def test_tools_with_ids_from_several_namespaces_get_distinct_names(
    entries: list[dict[str, str]], names: list[str]
) -> None:
    tools = [{**entry, "schema": {"type": "object"}} for entry in entries]
    for order in (tools, tools[::-1]):
        text = json.dumps({"manifest_version": "1", "tools": order}).encode()
        manifest = load_manifest("manifest.json", manifest_text=text)
        assert sorted(tool.name for tool in manifest.tools) == sorted(names)


def test_second_tool_of_the_same_name_is_a_fault() -> None:
    """Otherwise, a rule in the governance file could not say to which of the two tools it applies."""
    records = [{"id": f"tool.{space}.look_up", "schema": {"type": "object"}} for space in ("claims", "risk")]
    text = json.dumps({"manifest_version": "1", "tools": records}).encode()

    with pytest.raises(FileFaultsError, match="`look_up` is declared twice, first as number 1") as caught:
        load_manifest("manifest.json", manifest_text=text)
    assert [fault.hint for fault in caught.value.faults] == [
        "rename or remove one; `name` overrides the end of the `id`"
    ]


def test_manifest_with_every_documented_field_loads() -> None:
    text = """
manifest_version: 2026.07.1
agents: [{id: "agent:payments", tools: {initiate_wire: 2.1.0}}]
tools:
  - name: initiate_wire
    id: tool.payments.initiate_wire
    version: 2.1.0
    type: cli
    cli:
      argv: [wire, --json, "{amount}", "{beneficiary_id}", "{source_ids}", "{source_account}", "{web_search:--web}"]
      env: [HOME]
      cwd: /srv
    description: Initiate wire transfer on payment hub
    schema:
      type: object
      properties:
        amount: {type: number, description: a}
        beneficiary_id: {type: string, description: b}
        source_ids: {type: array, items: {type: string}, description: c}
        source_account: {type: string, description: d}
        web_search: {type: boolean, description: e}
    result_schema: {type: object}
    pdp_action: initiate_wire
    ontology_pin: "2026.1"
    effect_class: commit-high
    risk_tier: high
    scopes: [payments.wire.initiate]
    markings: [pii.medium]
    purposes: [payments.supplier]
    idempotency: {required: true, ttl: PT24H}
    limits: [{limit: wire.auto_approved, argument: amount}]
    resource: {type: wire_payment, id: $arguments.beneficiary_id, markings: $session.facts.markings}
    context: {amount: $arguments.amount, sanctions_status: $session.facts.sanctions_status}
    approval: {approvers: [payments.approver], quorum: 1, expires: PT1H, unless_within_limits: false}
    provenance: {required: [source_ids]}
    writes: proposal
    compensation: cancel_wire
    invariants:
      - {id: NEEDS_SEARCH, rule: "...", check: "call.web_search == true", correct: {set: {web_search: true}}}
      - {id: ONCE, rule: "...", check: "size(plan) < 2", correct: prune}
      - {id: NEVER, rule: "...", check: "!has(call.amount)"}
    config: [{key: mode, default: fast, normalize: [strip, lower, empty_to_null]}]
    state:
      reads: [normalized_query_text]
      effects:
        - {key: evidence, type: array, merge: append, preserve_across_turns: true, prompt_template_var: EVIDENCE}
    safety: {side_effects: external, idempotent: false, requires: [network]}
    timeout: PT10S
    retries: 0
    sla: {p50: 200ms, p99: 1.5s}
    eval_pack: pack.tool.initiate_wire.2.1.0
    release: {gate: passed, drift: ok, deprecation: null}
    sensitive: [source_account]
  - name: cancel_wire
    description: Cancel
    schema: {type: object, properties: {source: {type: string, maxLength: 9, description: f}}}
    effect_class: commit-low
    risk_tier: low
    compensation: initiate_wire
    writes: proposal
    provenance: {required: [source]}
"""
    wire = load_manifest("m.yaml", manifest_text=text.encode(), strict=True).tools[0]
    stated = wire.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert stated == read_document("m.yaml", text=text).value["tools"][0]


def test_manifest_in_camel_case_with_shorthand_values_equals_the_full_manifest() -> None:
    snake = tool(
        effect_class="stage", ontology_pin="1", idempotency={"required": True, "ttl": "PT1H"}, markings=["a", "b"],
        approval={"unless_within_limits": True}, eval_pack="p", result_schema={"type": "object"}, pdp_action="pay",
        state={"effects": [{"key": "k", "preserve_across_turns": True, "prompt_template_var": "V"}]},
        safety={"side_effects": "write"}, timeout="P1D",
    )  # fmt: skip
    schema = snake.pop("schema")
    camel = {
        "name": "pay_bill", "description": "Pay a bill.", "scopes": ["bills.pay"], "riskTier": "low",
        "effectClass": "stage", "ontologyPin": "1", "idempotency": {"ttl": "PT60M"}, "idempotencyRequired": True,
        "markings": [{"allowed": "a"}, "b"], "approval": {"unlessWithinLimits": True}, "evalPack": "p",
        "signature": {"request": schema, "response": {"type": "object"}}, "pdpAction": "pay",
        "state": {"effects": [{"key": "k", "preserveAcrossTurns": True, "promptTemplateVar": "V"}]},
        "safety": {"sideEffects": "write"}, "timeout": "PT24H",
    }  # fmt: skip

    one = load_manifest("m.json", manifest_text=manifest_text({**snake, "schema": schema}))
    other = load_manifest("m.json", manifest_text=json.dumps({"manifestVersion": "1", "tools": [camel]}).encode())

    assert one == other
    assert one.tools[0].timeout == "PT24H"


def test_serialized_manifest_can_be_loaded_without_changes() -> None:
    for path in (PAYMENTS / "manifest.json", EXAMPLES / "registry" / "manifest.yaml"):
        manifest = load_manifest(path)
        written = manifest.model_dump_json(by_alias=True, exclude_none=True).encode()
        assert load_manifest("m.json", manifest_text=written) == manifest


def test_signature_may_be_a_reference_to_a_definition_in_the_file() -> None:
    definitions = {"Pay": {"request": tool()["schema"], "response": {"type": "object"}}}
    for signature in ("#/$defs/Pay", {"$ref": "#/$defs/Pay"}):
        text = manifest_text(tool(schema=None, signature=signature), **{"$defs": definitions})
        assert load_manifest("m.json", manifest_text=text).tools[0].schema_ == tool()["schema"]


def test_pattern_sets_the_effect_class() -> None:
    patterns = {
        "extraction": "pure",
        "lookup": "read-external",
        "validation": "pure",
        "classification": "pure",
        "composition": "pure",
        "action-staging": "stage",
        "approval-request": "commit-low",
        "aggregation": "read-internal",
        "conversion": "pure",
        "search": "read-internal",
    }
    tools = load_effective(EXAMPLES / "underwriting/manifest.yaml", EXAMPLES / "underwriting/governance.yaml").tools

    assert {one.pattern: one.effect_class for one in tools.values() if one.pattern} == patterns


# Faults of a manifest


def test_manifest_fault_shows_its_location_its_source_line_and_a_hint() -> None:
    text = b"manifest_version: '1'\ntools:\n  - name: pay_bill\n    scpoes: [a]\n    schema: {type: object}\n"

    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", manifest_text=text)

    assert str(caught.value) == (
        "m.yaml:4:5: unknown key `scpoes`\n        scpoes: [a]\n        ^\n    hint: did you mean `scopes`?"
    )


def test_fault_of_a_field_written_in_camel_case_has_the_location_of_the_field() -> None:
    text = b"""manifestVersion: '1'
tools:
  - name: pay_bill
    riskTier: hihg
    approval: {unlessWithinLimits: 1}
    idempotencyRequired: 2
    markings: [allowed: "a b", c]
    signature:
      request: {type: object, properties: {a: {type: strng}}}
      response: {type: 3}
"""
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", manifest_text=text)

    assert [f"{fault.place.line}:{fault.place.column} {fault.message.split()[0]}" for fault in caught.value.faults] == [
        "4:15 `riskTier`",
        "5:36 `approval.unlessWithinLimits`",
        "6:26 `idempotency.required`",
        "7:16 `markings[0]`",
        "9:54 `type`",
        "10:24 not",
    ]


# Each item of FAULTY_TOOLS has fields of a tool, and the expected faults with their hints.
NOT_A_SCHEMA = "check this part against JSON Schema draft 2020-12"
SIGNATURE = (
    "write {request: SCHEMA, response: SCHEMA}, '#/$defs/NAME', or the name of a file that has them, in the "
    "manifest's folder"
)
DERIVED = (
    "with `key: derive(args)` on commit-high, a payment with equal arguments counts as a repeat | remove `key` and "
    "keep `required: true`: the session states the key of each call (`idempotency_key`)"
)
FAULTY_TOOLS: list[tuple[str, ...]] = [
    ("approval: {quorm: 1}", "unknown key `quorm` | did you mean `quorum`?"),
    ("safety: {zzz: 1}", "unknown key `zzz` | known keys: error_text, idempotent, requires, side_effects"),
    ("parameters: {}", "unknown key `parameters` | did you mean `schema`?"),
    ("input_schema: {}", "unknown key `input_schema` | did you mean `schema`?"),
    ("effectClass: pure, effect_class: pure", "`effect_class` is also set under another name | remove one of them"),
    ("name: ''", "`name` must not be empty"),
    ("name: a b", "`name` must be a name of letters, digits and `_ . : / -`, at most 128 characters, not `a b`"),
    ("name: null", "`name` is missing"),
    ("schema: null", "`schema` is missing"),
    ("ontology_pin: 2026.1", "`ontology_pin` must be a string, not `2026.1` | write it in quotes"),
    ("version: '2.1'", "`version` must be a semantic version, not `2.1` | write major.minor.patch, such as 1.0.0"),
    ("timeout: 10s",
     ("`timeout` must be an ISO 8601 duration, not `10s` | such as PT10S, PT1H or P1D; months and years have "
     "no fixed length")),
    ("approval: {expires: P1M}",
     ("`approval.expires` must be an ISO 8601 duration, not `P1M` | such as PT10S, PT1H or P1D; months and "
     "years have no fixed length")),
    ("timeout: PT0S", "`timeout` must be longer than zero, not `PT0S`"),
    ("sla: {p50: soon}", "`sla.p50` must be a latency in ms or s, not `soon` | such as 200ms or 1.5s"),
    ("sla: {fast: 1s}", "key `fast` must be a percentile, not `fast` | such as p50 or p99"),
    ("sla: {p50: 200}", "`sla.p50` must be a string, not `200` | write it in quotes"),
    ("risk_tier: hihg", "`risk_tier` must be one of low, medium, high, not `hihg` | did you mean `high`?"),
    ("pattern: lookupp",
     ("`pattern` must be one of extraction, lookup, validation, classification, composition, action-staging, "
     "approval-request, aggregation, conversion, search, not `lookupp` | did you mean `lookup`?")),
    (("schema: {type: object, required: [value, target], properties: {value: {type: number}, target: {type: "
     "string}}}, result_schema: {type: number}, pattern: conversion, effect_class: read-external"),
     ("effect class read-external contradicts pattern conversion, which requires pure | leave `effect_class` "
     "out, or name another pattern")),
    ("idempotency_required: 'yes'", "`idempotency.required` must be true or false, not `yes`"),
    ("idempotency: {required: 1}", "`idempotency.required` must be true or false, not `1`"),
    ("idempotency: {required: 'true'}", "`idempotency.required` must be true or false, not `true` | remove the quotes"),
    ("approval: {quorum: true}", "`approval.quorum` must be a whole number, not true"),
    ("approval: {quorum: 0}", "`approval.quorum` must be at least 1, not `0`"),
    ("idempotency_required: true, idempotency: {required: false}",
     "`idempotency_required` contradicts `idempotency.required` | state it once"),
    ("description: [a]", "`description` must be a string, not a list"),
    ("scopes: a", "`scopes` must be a list, not `a` | write it in square brackets"),
    ("provenance: {required: null}", "`provenance.required` is null | state a value, or leave the field out"),
    ("scopes: [a, '']", "`scopes[1]` must not be empty"),
    ("markings: [{denied: x}]", "`markings[0]` must be a string, not a mapping"),
    ("release: {gate: open, drift: ok}",
     "`release.gate` must be `passed`, not `open` | only released tools load"),
    ("release: {gate: passed, drift: bad}",
     "`release.drift` must be `ok`, not `bad` | only released tools load"),
    ("release: {gate: passed}", "`release.drift` is missing"),
    *((f"{name}: null", f"`{name}` is null | state a value, or leave the field out")
      for name in ("purposes", "markings", "effectClass", "approval", "limits", "writes", "release")),
    *((f"context: {{{name}: $session.facts.x}}",
       (f"the context key `{name}` is set by the enforcement point | choose another "
       f"name")) for name in sorted(PEP_CONTEXT)),
    ("commits: [pay_bill]", ("`commits` is only allowed on a tool that stages actions | write `pattern: "
                            "action-staging`, or remove `commits`")),
    ("writes: canon", "`writes` must be one of none, proposal, canonical, not `canon` | did you mean `canonical`?"),
    ("effect_class: commit-high, risk_tier: high, idempotency: {key: derive(args)}", DERIVED),
    ("writes: proposal",
     ("the tool writes a proposal, but does not name its sources | name the arguments with the sources: "
      "`provenance: {required: "
     "[source_ids]}`")),
    ("type: cli", "`type: cli` needs the field `cli` | name the program: `cli: {argv: [...]}`"),
    ("cli: {argv: [ls]}", "`cli` is only allowed with `type: cli` | write `type: cli`, or remove `cli`"),
    ("type: cli, cli: {argv: []}", "`cli.argv` must not be empty"),
    ("retries: 11", "`retries` must be at most 10, not `11`"),
    ("risk_tier: high",
     ("a tool with a high risk tier needs idempotency | write `idempotency: {required: true}`; or declare an "
      "effect class "
     "without side effects")),
    ("risk_tier: null, effect_class: commit-high",
     ("a tool with a high risk tier needs idempotency | write `idempotency: {required: true}`; or declare an "
      "effect class "
     "without side effects")),
    ("effect_class: pure, safety: {side_effects: external}",
     ("side effects `external` contradict effect class pure | declare the effect class that the tool has: stage, "
     "commit-low or commit-high")),
    ("effect_class: read-external, safety: {side_effects: write}",
     ("side effects `write` contradict effect class read-external | declare the effect class that the tool has: "
     "stage, commit-low or commit-high")),
    ("limits: [{limit: a.b, argument: amuont}]", "`amuont` is not an argument of the schema | did you mean `amount`?"),
    (("schema: {type: object, properties: {amount: {type: string, description: x}}}, limits: [{limit: a.b, "
     "argument: amount}]"),
     "limit on argument `amount`, which is not declared as a number | name an argument of type number or integer"),
    ("limits: [{limit: a.b, argument: amount}, {limit: a.b, argument: amount}]",
     "limit `a.b on amount` is declared twice, first as number 1 | rename or remove one"),
    ("provenance: {required: [sources]}", "`sources` is not an argument of the schema | known: amount"),
    ("sensitive: [zzz], schema: {type: object}",
     "`zzz` is not an argument of the schema | there are no arguments"),
    ("resource: {id: $arguments.amount}", "the resource has no `type` | map `type`, or leave the resource out"),
    ("context: {x: $arguments.amount +}", "not CEL: mismatched input '<EOF>' (at character 19)"),
    ("context: {x: '$true ? 1'}", "not CEL: Incomplete `ExprContext` for `_?_:_` expression! (at character 1)"),
    ("resource: {type: t, id: i, markings: $arguments.amount}",
     ("`markings` must not come from the arguments, which the model writes | take the value from the session: "
     "$session.facts… or $session.claims…")),
    ("context: {subject: '$session.facts.people.filter(p, p == arguments.amount)'}",
     ("`subject` must not come from the arguments, which the model writes | take the value from the session: "
     "$session.facts… or $session.claims…")),
    ("context: {more: {approved: ['$arguments.amount']}}",
     ("`approved` must not come from the arguments, which the model writes | take the value from the session: "
     "$session.facts… or $session.claims…")),
    ("invariants: [{id: A, rule: r, check: 'true'}, {id: A, rule: r, check: 'true'}]",
     "invariant `A` is declared twice, first as number 1 | rename or remove one"),
    ("invariants: [{id: A, rule: r, check: arguments.x}]",
     "expression reads `arguments`, which is not available | available here: call, config, plan, state"),
    ("invariants: [{id: A, rule: r, check: 'true', correct: {set: {zzz: 1}}}]",
     "`zzz` is not an argument of the schema | known: amount"),
    ("invariants: [{id: A, rule: r, check: 'true', correct: fix}]",
     "`invariants[0].correct` must be one of prune, not `fix`"),
    ("config: [{key: a}, {key: a}]", ("config parameter `a` is declared twice, first as number 1 | rename or "
                                     "remove one")),
    ("state: {effects: [{key: a}, {key: a}]}",
     "state effect `a` is declared twice, first as number 1 | rename or remove one"),
    ("schema: null, signature: {in: {}}",
     f"`signature` must have the schemas `request` and `response` | {SIGNATURE}"),
    *(("schema: null, signature: " + json.dumps(name), f"`signature` not found: {name:.80} | {SIGNATURE}")
      for name in ("#/$defs/No", "no.json", "..", "https://example.org/x", "x" * 300)),
    ("schema: {type: objekt}",
     ("`type` must be one of array, boolean, integer, null, number, object, string, not `objekt` | did you "
     "mean `object`?")),
    ("schema: {type: object, required: amount, minProperties: -1}",
     f'not a JSON Schema: "amount" is not of type "array" | {NOT_A_SCHEMA}',
     f"not a JSON Schema: -1 is less than the minimum of 0 | {NOT_A_SCHEMA}"),
    ("schema: {type: object, properties: {a: {type: [[string]]}}}",
     (f'not a JSON Schema: [["string"]] is not valid under any of the schemas listed in the \'anyOf\' keyword | '
     f"{NOT_A_SCHEMA}")),
    ("schema: {properties: {}}",
     "schema of the arguments must be of type object | write `type: object` and its `properties`"),
    ("schema: {type: object, properties: {a: {$ref: 'https://example.org/x', description: x}}}",
     ("$ref to another file: https://example.org/x | refer to `#/$defs/NAME` of this file, to "
     "types.json#/$defs/NAME, or to a type of the `ontology`")),
    ("result_schema: {$ref: '#/$defs/No'}",
     "$ref target does not exist: #/$defs/No | define it under `$defs` of the schema or the file"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "found"), [(fields, found) for fields, *found in FAULTY_TOOLS])
def test_faulty_tool_field_is_a_fault_with_a_hint(fields: str, found: list[str]) -> None:
    # If the value of such a field is None, the test leaves the field out of the file.
    absent = ("name", "schema", "risk_tier")
    stated = {**tool(), **yaml.safe_load(f"{{{fields}}}")}
    left = {name: value for name, value in stated.items() if value is not None or name not in absent}
    assert faults(manifest_text(left)) == set(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", {"a manifest must be a mapping | check that it is the right file"}),
        ('"x"', {"a manifest must be a mapping | check that it is the right file"}),
        ("{}", {"`manifest_version` is missing", "`tools` is missing"}),
        ('{"manifest_version": 1, "tools": {}}', {
            "`manifest_version` must be a string, not `1` | write it in quotes",
            "`tools` must be a list, not a mapping"}),
        ('{"manifest_version": "1", "tools": [], "agnets": []}', {"unknown key `agnets` | did you mean `agents`?"}),
        ('{"manifest_version": "1", "tools": ["x", null]}', {
            "must be a mapping, not `x`", "must be a mapping, not null"}),
        ('{"manifest_version": "1", "tools": [], "$defs": []}', {"`$defs` must be a mapping of names to schemas"}),
        ('{"name": "a_b", "schema": {"type": "object"}, "scopes": ["x"]}', {"`manifest_version` is missing"}),
    ],
)  # fmt: skip
def test_faulty_manifest_field_is_a_fault(text: str, found: set[str]) -> None:
    assert faults(text.encode()) == found


def test_pins_must_name_existing_tools_and_versions() -> None:
    agents = [
        {"id": "a", "tools": {"pay_bill": "1.0.0", "pay_bil": "1.0.0"}},
        {"id": "b", "tools": {"pay_bill": "2.0.0"}},
        {"id": "b", "tools": {}},
    ]

    assert faults(manifest_text(tool(version="1.0.0"), agents=agents)) == {
        "agent pins `pay_bil`, which is not declared | did you mean `pay_bill`?",
        "agent pins version 2.0.0 of `pay_bill`, which has version 1.0.0 | pin 1.0.0",
        "agent `b` is declared twice, first as number 2 | rename or remove one",
    }
    assert faults(manifest_text(tool(), agents=agents[1:2])) == {
        "agent pins version 2.0.0 of `pay_bill`, which has no version | state the tool's `version`"
    }


def test_manifest_faults_of_all_kinds_are_reported_together() -> None:
    text = b"""manifest_version: 1.0
tools:
  - name: get_x
    name: get_y
    version: 1.0
    scpoes: [a]
    schema: {type: object, properties: {a: {type: strng}, b: {type: number}}}
    timeout: .nan
    limits: [{limit: a.b, argument: bb}, {limt: x}, {limit: c.d, argument: b}, {limit: c.d, argument: b}]
    context: {time: 1, x: "$("}
    retries: 1.5
"""
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", manifest_text=text)

    assert [f"{fault.place.line}:{fault.place.column} {fault.message}" for fault in caught.value.faults] == [
        "1:19 `manifest_version` must be a string, not `1.0`",
        "4:5 key `name` is a duplicate, first on line 3",
        "5:14 `version` must be a string, not `1.0`",
        "6:5 unknown key `scpoes`",
        "7:51 `type` must be one of array, boolean, integer, null, number, object, string, not `strng`",
        "8:14 `.nan` is not a finite number",
        "9:42 `limits[1].limit` is missing",
        "9:43 unknown key `limt`",
        "10:15 the context key `time` is set by the enforcement point",
        "10:27 not CEL: mismatched input '<EOF>' (at character 2)",
        "11:14 `retries` must be a whole number, not `1.5`",
    ]


def test_untyped_argument_is_reported_beside_a_faulty_risk_tier() -> None:
    text = manifest_text(tool(risk_tier="hihg", schema={"type": "object", "properties": {"note": {}}}))

    assert faults(text) == {
        "`risk_tier` must be one of low, medium, high, not `hihg` | did you mean `high`?",
        "argument `note` may have any type (not_a_tool.untyped) | state its `type`",
    }


def test_faulty_manifest_field_causes_only_one_fault() -> None:
    text = manifest_text(tool(risk_tier="high", idempotency={"required": "yes"}, scopes="x", effect_class=None))

    assert faults(text) == {
        "`idempotency.required` must be true or false, not `yes`",
        "`scopes` must be a list, not `x` | write it in square brackets",
    }


@pytest.mark.parametrize("text", [b"", b"{" * 10_000, os.urandom(1024) + b"\xff"])
@pytest.mark.parametrize(("load", "option"), [(load_manifest, "manifest_text"), (load_governance, "text")])
def test_loading_random_bytes_as_a_manifest_raises_a_faults_error(load: Any, option: str, text: bytes) -> None:
    with pytest.raises(FileFaultsError) as caught:
        load("junk", **{option: text})

    assert len(caught.value.faults) <= 2


# Warnings about a manifest

VERB_FIRST = "start with a verb, such as search_web, and start the description with it, as in `Searches the web`"
NOT_SNAKE = f"is not snake_case of at least two words | {VERB_FIRST}"
NO_VERB = f"does not start with a known verb | {VERB_FIRST}"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"scopes": None}, ("nothing governs action `pay_bill`: every call is denied | "
                            "state scopes or an effect class, here or in the governance file")),
        ({"name": "payBill"}, f"name `payBill` {NOT_SNAKE}"),
        ({"name": "pay"}, f"name `pay` {NOT_SNAKE}"),
        ({"name": "validation_run"}, f"name `validation_run` {NO_VERB}"),
        ({}, None),
        ({"name": "customer_pay", "description": "Pays bills."}, f"name `customer_pay` {NO_VERB}"),
        ({"name": "customer_record", "description": "Customer record."}, f"name `customer_record` {NO_VERB}"),
        ({"name": "mention_user"}, None),
        ({"name": "amortise_loan", "description": "Amortises a loan."}, None),
        ({"name": "quash_claim", "description": "Quashes a claim."}, None),
        ({"description": None}, "tool `pay_bill` has no description | describe it for the model"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "SourceRef"}}}},
         "argument `a` of `pay_bill` has no description | describe it for the model"),
        ({"effect_class": "commit-low", "writes": "proposal", "provenance": {"required": ["amount"]}},
         "commit-low without `compensation` | name the tool that undoes the effect"),
        ({"compensation": "pay_bil"},
         "compensation `pay_bil` is not a tool of this manifest | did you mean `pay_bill`?"),
    ],
)  # fmt: skip
def test_strict_load_reports_warnings_as_faults(fields: dict[str, Any], found: str | None) -> None:
    text = manifest_text(tool(**fields))

    assert warnings(text) == ({found} if found else set())
    if found:
        assert faults(text, strict=True) == {found}


def test_manifest_warnings_are_sorted_by_location() -> None:
    found: list[Fault] = []
    load_effective(PAYMENTS / "manifest.json", PAYMENTS / "governance.yaml", warnings=found)

    assert [(fault.place.line, fault.message) for fault in found][:2] == [
        (14, "argument `payee_name` of `lookup_beneficiary` has no description"),
        (17, "argument `invoice_ref` of `lookup_beneficiary` has no description"),
    ]
    assert {fault.message.partition(" of ")[2] for fault in found} == {
        f"`{name}` has no description" for name in ("lookup_beneficiary", "validate_payment", "initiate_wire")
    }


def test_tool_with_a_deprecated_version_loads_with_a_warning() -> None:
    record = EXAMPLES / "registry/manifest.yaml"
    text = record.read_text().replace("deprecation: null", "deprecation: use 2.0.0 from July on")
    found: list[Fault] = []
    load_manifest(record, manifest_text=text.encode(), warnings=found)
    (warning,) = [fault for fault in found if "deprecated" in fault.message]

    assert (warning.message, warning.hint, warning.place.line) == (
        "`lookup_policyholder` is deprecated: use 2.0.0 from July on", "let agents pin the tool that replaces it", 19,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("commits", "message", "warning"),
    [
        ("issue_all", "`issue_all` is not a tool of this manifest", True),
        ("issue_polcy", "`issue_polcy` is not a tool of this manifest", False),
        ("compose_quote", "`compose_quote` has pattern composition, so it does not commit", False),
    ],
)
def test_commits_field_must_name_tools_that_commit(commits: str, message: str, warning: bool) -> None:
    text = (EXAMPLES / "underwriting/manifest.yaml").read_text()
    named = text.replace("commits: [issue_policy]", f"commits: [{commits}]")
    named = named.replace("enum: [issue_policy]", f"enum: [{commits}]")
    found: list[Fault] = []
    try:
        load_manifest("m.yaml", manifest_text=named.encode(), warnings=found)
    except FileFaultsError as error:
        found += error.faults
    about_commits = [fault for fault in found if commits in fault.message]
    assert [(fault.message, fault.warning) for fault in about_commits] == [(message, warning)]


# Faults of a governance file


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", {"1:1 a governance file must be a mapping"}),
        ("null", {"1:1 a governance file must be a mapping"}),
        ("actions: []", {"1:10 `actions` must be a mapping, not a list"}),
        ("actions: {a: {scopes: x, nope: 1}, b: 3}", {
            "1:23 `scopes` must be a list, not `x`", "1:26 unknown key `nope`", "1:39 must be a mapping, not `3`"}),
        ("actions: {'a b': {}}", {
            "1:11 key `a b` must be a name of letters, digits and `_ . : / -`, at most 128 characters, not `a b`"}),
        ("actions: {a: {}, a: {}}\nextra: 1", {
            "1:18 key `a` is a duplicate, first on line 1", "2:1 unknown key `extra`"}),
        ("actions: {a: {name: x}}", {"1:15 unknown key `name`"}),
        ("actions: {a: {purposes: }}", {"1:25 `purposes` is null"}),
        ("actions: {a: {writes: 'canon', context: {time: 1, roles: $arguments.r}}}", {
            "1:23 `writes` must be one of none, proposal, canonical, not `canon`",
            "1:42 the context key `time` is set by the enforcement point",
            "1:58 `roles` must not come from the arguments, which the model writes"}),
    ],
)  # fmt: skip
def test_faulty_governance_field_is_a_fault(text: str, found: set[str]) -> None:
    with pytest.raises(FileFaultsError) as caught:
        load_governance("g.yaml", text=text.encode())

    assert {f"{fault.place.line}:{fault.place.column} {fault.message}" for fault in caught.value.faults} == found


def test_governance_file_may_use_camel_case_and_shorthand_like_a_manifest() -> None:
    text = b"actions: {pay_bill: {effectClass: pure, riskTier: low, idempotencyRequired: true, markings: [allowed: a]}}"

    rules = load_governance("g.yaml", text=text).actions["pay_bill"]

    assert rules.model_dump(mode="json", exclude_unset=True) == {
        "effect_class": "pure", "risk_tier": "low", "idempotency": {"required": True}, "markings": ["a"],
    }  # fmt: skip


# Faults of manifest and governance file together


def both(manifest: bytes, governance: str) -> list[str]:
    with pytest.raises(FileFaultsError) as caught:
        load_effective("m.json", "g.yaml", manifest_text=manifest, governance_text=governance.encode())
    return [str(fault).splitlines()[0] for fault in caught.value.faults]


def test_fault_of_a_merged_manifest_entry_is_reported_in_the_file_that_has_the_faulty_field() -> None:
    governance = (
        "actions:\n  pay_bill:\n    limits: [{limit: a.b, argument: amuont}]\n"
        "    risk_tier: high\n    resource: {id: bill}\n"
    )

    assert both(manifest_text(tool(risk_tier=None)), governance) == [
        "g.yaml:3:37: `amuont` is not an argument of the schema",
        "g.yaml:4:16: a tool with a high risk tier needs idempotency",
        "g.yaml:5:15: the resource has no `type`",
    ]


def test_governance_file_can_supply_missing_fields() -> None:
    manifest = manifest_text(tool(risk_tier="high", scopes=None, resource={"type": "bill"}))
    governance = b"actions: {pay_bill: {scopes: [x], idempotencyRequired: true, resource: {id: $arguments.amount}}}"

    loaded = load_effective("m.json", "g.yaml", manifest_text=manifest, governance_text=governance, strict=True)

    assert loaded.tools["pay_bill"].resource == {"type": "bill", "id": "$arguments.amount"}


def test_faults_of_manifest_and_governance_file_are_reported_together() -> None:
    assert both(manifest_text(tool(version="1")), "actions: {pay_bill: {nope: 1}, other: {}}") == [
        "g.yaml:1:22: unknown key `nope`",
        "m.json:1:248: `version` must be a semantic version, not `1`",
    ]


def test_action_similar_to_a_known_one_is_a_fault_and_other_unknown_actions_cause_a_warning() -> None:
    def load(actions: bytes, warnings: list[Fault] | None = None) -> None:
        manifest = manifest_text(tool(), tool(name="pay_bills"))
        load_effective("m.json", "g.yaml", manifest_text=manifest, governance_text=actions, warnings=warnings)

    with pytest.raises(FileFaultsError) as caught:
        load(b"actions: {pay_bil: {}, file_tax: {}}")
    warned: list[Fault] = []
    load(b"actions: {file_tax: {}, pay_bill: {}, pay_bills: {}, pay_bil: {}}", warned)

    assert str(caught.value) == (
        "g.yaml:1:11: action `pay_bil` belongs to no tool of the manifest\n"
        "    actions: {pay_bil: {}, file_tax: {}}\n"
        "              ^\n"
        "    hint: did you mean `pay_bill`?"
    )
    assert [fault.place.column for fault in warned if "belongs to no tool" in fault.message] == [11, 54]
