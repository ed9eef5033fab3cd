"""Tests of clauses: which clauses a tool meets, and which clauses the governance file demands."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.errors import Fault, FileFaultsError
from pdp.manifest.effective import effective_manifest
from pdp.manifest.fields import UNIVERSAL_CLAUSES, Clause
from pdp.manifest.load import load_effective, load_manifest
from pdp.manifest.model import Manifest
from pdp.manifest.rules.lint import lint
from tests.support import ROOT

EXAMPLES = ROOT / "examples"

NOTE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
ONTOLOGY = {"version": "2026.1", "$defs": {"Note": NOTE, "Text": {"type": "string", "maxLength": 9}}}
TYPED = {"$ref": "#/$defs/ontology_Note", "$defs": {"ontology_Note": NOTE}}

NOBODY = "`approval.approvers` to grant its approvals"


def missing(agents: Any = None, ontology: Any = ONTOLOGY, **fields: Any) -> dict[str, tuple[str, ...]]:
    tool = {"name": "pay_bill", "schema": {"type": "object"}, **fields}
    stated = {"manifest_version": "1", "agents": agents, "ontology": ontology, "tools": [tool]}
    manifest = Manifest.model_validate(stated)
    (contract,) = lint(effective_manifest(manifest))
    return {clause.value: what for clause, what in contract.missing.items() if what}


def test_tool_with_all_fields_meets_every_clause() -> None:
    assert (
        missing(
            agents=[{"id": "a", "tools": {"pay_bill": "1.0.0"}}],
            result_schema=TYPED,
            ontology_pin="2026.1",
            effect_class="stage",
            version="1.0.0",
            idempotency={"required": True},
            scopes=["bills.pay"],
            markings=[],
            purposes=["bills"],
            approval={"approvers": ["bills.approver"]},
            eval_pack="pack",
            release={"gate": "passed", "drift": "ok"},
        )
        == {}
    )


def test_missing_fields_are_listed_by_clause() -> None:
    assert missing(version="1.0.0", agents=[])["versioned"] == ("agent that pins it",)
    assert missing(ontology=None) == {
        "typed": ("`result_schema`", "`ontology_pin`", "`ontology` in its manifest"),
        "versioned": ("`version`", "`agents` that pin it"),
        "idempotent": ("`idempotency` or effect class without side effects",),
        "permissioned": ("`effect_class`", "`scopes`", "`markings`", "`purposes`", NOBODY),
        "eval-gated": ("`eval_pack`", "`release`"),
    }


def test_clause_idempotent_is_met_by_a_required_key_or_a_harmless_effect_class() -> None:
    for fields in (
        {"idempotency": {"required": True}},
        {"effect_class": "pure"},
        {"effect_class": "read-external"},
        {"safety": {"idempotent": True}},
    ):
        assert "idempotent" not in missing(**fields)
    for fields in ({"effect_class": "stage"}, {"safety": {"idempotent": False}}, {"idempotency": {"required": False}}):
        assert "idempotent" in missing(**fields)


def test_tool_that_may_need_approval_needs_approvers() -> None:
    limit = [{"limit": "bills.auto", "argument": "amount"}]
    for fields in ({}, {"risk_tier": "low", "effect_class": "commit-high"}, {"risk_tier": "low", "limits": limit}):
        assert NOBODY in missing(**fields)["permissioned"]
        assert NOBODY not in missing(**fields, approval={"approvers": ["bills.approver"]})["permissioned"]
    assert NOBODY not in missing(risk_tier="medium", effect_class="commit-low")["permissioned"]


WHOLE: dict[str, Any] = {
    "name": "look_up", "version": "1.0.0", "effect_class": "read-internal", "scopes": ["a"], "markings": [],
    "purposes": ["b"], "schema": {"type": "object"}, "result_schema": {"$ref": "Note"}, "eval_pack": "pack",
    "ontology_pin": "2026.1", "release": {"gate": "passed", "drift": "ok"},
}  # fmt: skip
AGENTS = [{"id": "agent:a", "tools": {"look_up": "1.0.0"}}]


def refused(manifest: dict[str, Any], clauses: list[str]) -> list[str]:
    governance = orjson.dumps({"clauses": clauses})
    try:
        load_effective("m.json", "g.json", manifest_text=orjson.dumps(manifest), governance_text=governance)
    except FileFaultsError as error:
        return [fault.message for fault in error.faults]
    return []


@pytest.mark.parametrize(
    ("changes", "clause", "lacks"),
    [
        ({}, "typed", None),
        ({"result_schema": None}, "typed", "`result_schema`"),
        ({"ontology_pin": None}, "typed", "`ontology_pin`"),
        ({"version": None}, "versioned", "`version`"),
        ({"effect_class": None}, "idempotent", "`idempotency` or effect class without side effects"),
        ({"effect_class": None, "risk_tier": "low"}, "permissioned", "`effect_class`"),
        ({"scopes": None, "purposes": None}, "permissioned", "`scopes`, no `purposes`"),
        ({"eval_pack": None}, "eval-gated", "`eval_pack`"),
    ],
)
def test_tool_that_misses_a_demanded_clause_does_not_load(
    changes: dict[str, Any], clause: str, lacks: str | None
) -> None:
    stated = {name: value for name, value in {**WHOLE, **changes}.items() if value is not None}
    pinning = {} if "version" in changes else {"agents": AGENTS}
    manifest = {"manifest_version": "1", "ontology": ONTOLOGY, "tools": [stated], **pinning}
    message = f"`look_up` does not meet clause `{clause}`, which the governance file demands: it has no {lacks}"
    pins = ", no `agents` that pin it" if "version" in changes else ""

    assert refused(manifest, [clause]) == ([message + pins] if lacks else [])
    assert refused(manifest, [] if lacks else list(Clause)) == []


def test_clause_typed_requires_the_ontology_that_the_manifest_names() -> None:
    manifest = {"manifest_version": "1", "ontology": {**ONTOLOGY, "version": "2026.2"}, "tools": [WHOLE]}
    assert refused(manifest, []) == ["`look_up` must pin the ontology of the manifest, `2026.2`"]
    manifest = {"manifest_version": "1", "tools": [{**WHOLE, "result_schema": NOTE}]}
    assert refused(manifest, []) == []
    assert refused(manifest, ["typed"]) == [UNTYPED + "`ontology` in its manifest"]


UNTYPED = "`look_up` does not meet clause `typed`, which the governance file demands: it has no "
NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("argument", "typed"),
    [
        ({"$ref": "Text", "description": "A text"}, True),
        ({"$ref": "#/$defs/alias"}, True),
        ({"$ref": "Note"}, True),
        ({"allOf": [{"$ref": "Text"}, {"minLength": 1}]}, True),
        ({"type": "array", "items": {"$ref": "Text"}}, True),
        ({"anyOf": [{"$ref": "Text"}, {"type": "null"}]}, True),
        ({"anyOf": [{"$ref": "Text"}, NUMBER]}, False),
        ({"type": "array", "items": NUMBER}, False),
        ({"type": "array", "prefixItems": [NUMBER], "items": {"$ref": "Text"}}, False),
        (NUMBER, False),
        ({"enum": ["a", "b"]}, False),
        ({"$ref": "SourceRef"}, False),  # `SourceRef` is a shared type of all manifests, not a type of this ontology.
        ({"$ref": "#/$defs/number"}, False),
        ({"type": "object", "properties": {"inner": {"$ref": "Text"}}}, False),
        ({"$ref": "Note", "properties": {"extra": {"$ref": "Text"}}}, True),
        ({"$ref": "Note", "properties": {"extra": NUMBER}}, False),
        ({"$ref": "Note", "anyOf": [{"$ref": "Text"}, NUMBER]}, False),
        ({"allOf": [{"$ref": "Note"}, {"type": "object", "properties": {"extra": NUMBER}}]}, False),
        ({"$ref": "Text", "if": {"minLength": 2}, "then": {"pattern": "^a"}}, True),
        ({"anyOf": [{"$ref": "Note"}], "oneOf": [{"type": "object", "properties": {"extra": NUMBER}}]}, False),
    ],
)
def test_each_argument_and_result_member_must_refer_to_an_ontology_type(
    argument: dict[str, Any], *, typed: bool
) -> None:
    definitions = {"alias": {"$ref": "Text"}, "number": NUMBER}
    head = {"manifest_version": "1", "ontology": ONTOLOGY, "$defs": definitions}
    ask = {"type": "object", "properties": {"ask": argument}}
    assert refused({**head, "tools": [{**WHOLE, "schema": ask}]}, ["typed"]) == (
        [] if typed else [UNTYPED + "type of the ontology for argument `ask`"]
    )
    assert refused({**head, "tools": [{**WHOLE, "result_schema": ask}]}, ["typed"]) == (
        [] if typed else [UNTYPED + "type of the ontology for result `ask`"]
    )


EXTRA = {"type": "object", "properties": {"extra": NUMBER}}


@pytest.mark.parametrize(
    ("whole", "untyped"),
    [
        ({"$ref": "Note", "type": "object", "minProperties": 1}, None),
        ({"$ref": "Note", "type": "object", "properties": {"extra": {"$ref": "Text"}}}, None),
        ({"$ref": "Note", **EXTRA}, "`extra`"),
        ({"type": "object", "allOf": [{"$ref": "Note"}, EXTRA]}, "`extra`"),
        ({"type": "object", "anyOf": [{"$ref": "Note"}], "oneOf": [EXTRA]}, "`extra`"),
        ({"type": "object", "anyOf": [{"$ref": "Note"}, EXTRA]}, "`extra`"),
        ({"$ref": "Note", "type": "object", "additionalProperties": NUMBER}, "`*`"),
    ],
)
def test_members_added_to_an_ontology_type_must_have_ontology_types(whole: dict[str, Any], untyped: str | None) -> None:
    """In requests and responses, a member that a schema adds to a type of the ontology needs a type of the ontology."""
    head = {"manifest_version": "1", "ontology": ONTOLOGY}
    for field, noun in (("schema", "argument"), ("result_schema", "result")):
        assert refused({**head, "tools": [{**WHOLE, field: whole}]}, ["typed"]) == (
            [f"{UNTYPED}type of the ontology for {noun} {untyped}"] if untyped else []
        )


def test_items_added_to_an_ontology_list_must_have_ontology_types() -> None:
    ontology = {"version": "2026.1", "$defs": {"Notes": {"type": "array", "items": NOTE}}}
    for items, typed in ((NUMBER, False), ({"$ref": "Notes"}, True)):
        tool = {**WHOLE, "result_schema": {"$ref": "Notes", "items": items}}
        found = refused({"manifest_version": "1", "ontology": ontology, "tools": [tool]}, ["typed"])
        assert found == ([] if typed else [UNTYPED + "type of the ontology for the response"])


@pytest.mark.parametrize("result", [{"type": "object"}, {"type": "string"}, {"anyOf": [NUMBER, {"enum": ["a"]}]}])
def test_result_without_members_must_be_an_ontology_type(result: dict[str, Any]) -> None:
    manifest = {"manifest_version": "1", "ontology": ONTOLOGY, "tools": [{**WHOLE, "result_schema": result}]}
    assert refused(manifest, ["typed"]) == [UNTYPED + "type of the ontology for the response"]


def test_faulty_schema_is_not_checked_for_ontology_types() -> None:
    tool = {**WHOLE, "schema": {"type": "object", "$defs": 3}, "result_schema": {"anyOf": 3}}
    found = refused({"manifest_version": "1", "ontology": ONTOLOGY, "tools": [tool]}, ["typed"])
    assert found == ['not a JSON Schema: 3 is not of type "object"', 'not a JSON Schema: 3 is not of type "array"']


def test_local_definition_named_like_an_ontology_type_is_not_an_ontology_type() -> None:
    own = {**TYPED, "$defs": {"ontology_Note": {"type": "object", "properties": {"text": NUMBER}}}}
    assert missing(ontology_pin="2026.1", result_schema=own)["typed"] == ("type of the ontology for result `text`",)
    assert "typed" not in missing(ontology_pin="2026.1", result_schema=TYPED)


@pytest.mark.parametrize(
    ("ontology", "fault"),
    [
        (None, "manifest.yaml:1 `ontology` file not found: types.json"),
        ("[]", "types.json:1 a file of an ontology must be a mapping"),
        (
            '{"version": "1",\n "$defs": {"Note": {"minLenght": 1}}}',
            "types.json:2 `minLenght` is not a keyword of JSON Schema and checks nothing",
        ),
        (
            '{"version": "1", "$defs": {"Note": {"$ref": "Nope"}}}',
            "types.json:1 $ref to another file: Nope",
        ),
    ],
)
def test_faulty_ontology_is_reported_with_file_and_line(tmp_path: Path, ontology: str | None, fault: str) -> None:
    (tmp_path / "manifest.yaml").write_text("ontology: types.json\nmanifest_version: '1'\ntools: []\n")
    if ontology is not None:
        (tmp_path / "types.json").write_text(ontology)
    with pytest.raises(FileFaultsError) as caught:
        load_manifest(tmp_path / "manifest.yaml")
    assert [f"{Path(found.place.file).name}:{found.place.line} {found.message}" for found in caught.value.faults] == [
        fault
    ]


REFERRING = """\
ontology: NAME
manifest_version: "1"
tools:
  - {name: read_note, description: Read, scopes: [a], risk_tier: low, ontology_pin: "2026.1",
     schema: {type: object, properties: {a: {$ref: Text}}}, result_schema: {$ref: Note}}
  - {name: find_note, description: Find, scopes: [a], risk_tier: low, ontology_pin: "2026.1",
     schema: {type: object}, result_schema: {type: object, properties: {a: {type: string}}}}
"""
GOOD_TYPES = (
    '"$defs": {"Note": {"type": "object", "properties": {"a": {"type": "string"}}}, "Text": {"type": "string"}}'
)
NAMES_A_FILE = "name a file in the manifest's folder with `version` and `$defs`; `ontology_pin` states the version"


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ('"2026.1"', None, f"`ontology` file not found: 2026.1 | {NAMES_A_FILE}"),
        ("gone.json", None, f"`ontology` file not found: gone.json | {NAMES_A_FILE}"),
        ("round.json", None, f"`ontology` file not found: round.json | {NAMES_A_FILE}"),
        ("[a]", None, f"`ontology` must be the name of a file | {NAMES_A_FILE}"),
        ('""', None, f"`ontology` must be the name of a file | {NAMES_A_FILE}"),
        ("2026.1", None, f"`ontology` must be the name of a file | {NAMES_A_FILE}"),
        ("o.json", f"{{{GOOD_TYPES}}}", "`version` is missing"),
        ("o.json", f'{{"version": 2026.1, {GOOD_TYPES}}}', "`version` must be a string, not `2026.1`"),
        ("o.json", '{"version": "2026.1", "$defs": {"a/b": {}}}', "key `a/b` must be the name of a type, not `a/b`"),
    ],
)
def test_unusable_ontology_causes_only_one_fault(tmp_path: Path, name: str, content: str | None, fault: str) -> None:
    """If the ontology is unusable, faults of signatures, pins and clauses that depend on it are not reported."""
    (tmp_path / "m.yaml").write_text(REFERRING.replace("NAME", name))
    (tmp_path / "g.yaml").write_text("clauses: [typed]\n")
    (tmp_path / "round.json").symlink_to("round.json")
    if content is not None:
        (tmp_path / "o.json").write_text(content)
    with pytest.raises(FileFaultsError) as caught:
        load_effective(tmp_path / "m.yaml", tmp_path / "g.yaml")
    (found,) = caught.value.faults
    assert f"{found.message} | {found.hint}".startswith(fault)


def test_fault_of_each_clause_has_a_hint() -> None:
    tool = {"name": "file_note", "scopes": ["a"], "schema": {"type": "object"}, "effect_class": "stage"}
    manifest = {"manifest_version": "1", "tools": [{**tool, "writes": "none"}]}
    with pytest.raises(FileFaultsError) as caught:
        load_effective(
            "m", "g", manifest_text=orjson.dumps(manifest), governance_text=orjson.dumps({"clauses": list(Clause)})
        )
    hints = {fault.message.split("`")[3]: fault.hint for fault in caught.value.faults}
    assert hints == {
        "typed": "state it in the manifest; refer to types of the `ontology` file with `$ref`",
        "versioned": "state `version` here, and pin it in `agents` of the manifest",
        "idempotent": "state it here or in the governance file",
        "permissioned": "state it here or in the governance file",
        "eval-gated": "state `eval_pack` here, and `release` here or in the governance file",
        "provenance": "write `writes: proposal` and `provenance: {required: [ARGUMENT]}`, naming its sources",
    }


# The registry record that section 9.5 of document 000 prints.
RECORD = """\
id:           tool.<namespace>.<name>
version:      <semver>
pattern:      extraction | lookup | validation | classification |
              composition | action-staging | approval-request |
              aggregation | conversion | search
ontologyPin:  <ontology-version>
effectClass:  pure | read-internal | read-external |
              stage | commit-low | commit-high
scopes:       [tool.<name>.invoke, ...]
markings:     [allowed: pii.medium, regulated.kvkk, ...]
purposes:     [underwriting.review, claims.adjustment, ...]
signature:    <json-schema-ref for request and response>
idempotency:  { key: derive(args), ttl: PT24H }
sla:          { p50: 200ms, p99: 1.5s }
evalPack:     pack.tool.<name>.<semver>
release:      { gate: passed, drift: ok, deprecation: null }
"""
CHOICES = RECORD[RECORD.index("pattern:") : RECORD.index("ontologyPin:")]
CLASSES = RECORD[RECORD.index("effectClass:") : RECORD.index("scopes:")]


def record(effect: str, pattern: str = "") -> str:
    text = RECORD.replace(CHOICES, pattern).replace(CLASSES, f"effectClass: {effect}\n")
    for placeholder, value in {
        "<namespace>": "claims", "<name>": "look_up_claim", "<semver>": "1.0.0", "<ontology-version>": '"2026.1"',
        ", ...": "", "<json-schema-ref for request and response>": "schemas/claim.json",
    }.items():  # fmt: skip
        text = text.replace(placeholder, value)
    return text


def test_printed_registry_record_meets_all_six_clauses(tmp_path: Path) -> None:
    types = {
        "ClaimNumber": {"type": "string", "maxLength": 20},
        "Claim": NOTE,
        "SoRRef": {"$ref": "types.json#/$defs/SoRRef"},
    }
    files: dict[str, Any] = {
        "ontology.json": {"version": "2026.1", "$defs": types},
        "schemas/claim.json": {
            "request": {
                "type": "object",
                "required": ["identifier", "source"],
                "properties": {
                    "identifier": {"$ref": "ontology.json#/$defs/ClaimNumber"}, "source": {"$ref": "SoRRef"},
                },
            },
            "response": {"type": "object", "properties": {"claim": {"$ref": "Claim"}}},
        },
        "governance.yaml": {
            "clauses": UNIVERSAL_CLAUSES, "actions": {"look_up_claim": {"approval": {"approvers": ["claims.lead"]}}},
        },
    }  # fmt: skip
    (tmp_path / "schemas").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(orjson.dumps(content))
    head = "ontology: ontology.json\nagents: [{id: 'agent:claims', tools: {look_up_claim: 1.0.0}}]\n"

    def load(text: str) -> Any:
        (tmp_path / "manifest.yaml").write_text(head + text)
        return lint(load_effective(tmp_path / "manifest.yaml", tmp_path / "governance.yaml"))

    (report,) = load(record("read-external", "pattern: lookup\n"))
    assert report.met == UNIVERSAL_CLAUSES
    assert len(report.met) == 6

    with pytest.raises(FileFaultsError) as caught:
        load(record("commit-high"))
    assert [fault.message.partition(":")[0] for fault in caught.value.faults] == ["with `key"]
    (report,) = load(record("commit-high").replace("key: derive(args)", "required: true"))
    assert report.met == UNIVERSAL_CLAUSES


@pytest.mark.parametrize(
    ("fields", "lacks", "warned"),
    [
        ({"effect_class": "commit-low"}, "`writes: proposal`, no `provenance`", True),
        ({"effect_class": "stage", "provenance": {"required": ["id"]}}, "`writes: proposal`", True),
        ({"safety": {"side_effects": "write"}}, "`writes: proposal`, no `provenance`", True),
        # The tool declares neither an effect class nor side effects, so there is no warning.
        ({}, "`writes: proposal`, no `provenance`", False),
        ({"effect_class": "commit-low", "writes": "proposal", "provenance": {"required": ["id"]}}, "", False),
        ({"effect_class": "commit-low", "writes": "canonical"}, "", False),
        ({"effect_class": "read-external"}, "", False),
        ({"safety": {"side_effects": "read"}}, "", False),
    ],
)
def test_tool_with_effects_but_no_provenance_causes_a_fault_or_a_warning(
    fields: dict[str, Any], lacks: str, *, warned: bool
) -> None:
    tool = {"name": "file_note", "scopes": ["a"], "schema": {"type": "object", "properties": {"id": NUMBER}}, **fields}
    manifest = {"manifest_version": "1", "tools": [{"risk_tier": "low", **tool}]}
    demand = "`file_note` does not meet clause `provenance`, which the governance file demands: it has no "
    assert refused(manifest, ["provenance"]) == ([demand + lacks] if lacks else [])

    found: list[Fault] = []
    load_effective("m.json", manifest_text=orjson.dumps(manifest), warnings=found)
    warnings = [warning.message for warning in found if "has effects" in warning.message]
    assert warnings == ([f"`file_note` has effects and no {lacks}"] if warned else [])


def test_example_manifests_meet_the_expected_clauses() -> None:
    payments = lint(load_effective(EXAMPLES / "payments" / "manifest.json", EXAMPLES / "payments" / "governance.yaml"))
    (record,) = lint(load_effective(EXAMPLES / "registry/manifest.yaml", EXAMPLES / "registry/governance.yaml"))

    assert [(one.tool, one.met) for one in payments] == [
        ("lookup_beneficiary", (Clause.IDEMPOTENT, Clause.AUDITED)),
        ("validate_payment", (Clause.IDEMPOTENT, Clause.AUDITED)),
        ("initiate_wire", (Clause.IDEMPOTENT, Clause.AUDITED)),
    ]
    assert record.met == UNIVERSAL_CLAUSES
