"""Tests of warnings about schemas that no value matches and about missing approvers."""

import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.errors import Fault, FileFaultsError
from pdp.manifest.load import load_effective

HEAD = {"manifest_version": "2026.07.1"}


def tool(name: str = "read_note", **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "description": "Read.", "risk_tier": "low", "schema": {"type": "object", "properties": {}},
        **fields,
    }  # fmt: skip


def doubts(folder: Path, tools: list[Any], actions: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return file and message of each warning, and check that a strict load reports each warning as a fault."""
    manifest, governance = folder / "manifest.json", folder / "governance.json"
    manifest.write_bytes(orjson.dumps({**HEAD, "tools": tools}))
    governance.write_bytes(orjson.dumps({"actions": actions or {}}))
    warnings: list[Fault] = []
    load_effective(manifest, governance, warnings=warnings)
    found = [
        (Path(warning.place.file).stem, warning.message)
        for warning in warnings
        if warning.message.startswith(("no value matches", "no approvers left", "`$subject`"))
    ]
    if found:
        with pytest.raises(FileFaultsError) as caught:
            load_effective(manifest, governance, strict=True)
        assert {message for _, message in found} <= {fault.message for fault in caught.value.faults}
    return found


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "`minimum` 5 and `maximum` 3 are reversed"),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2},
         "`exclusiveMinimum` 2 and `maximum` 2 leave no value between them"),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 2},
         "`minimum` 2 and `exclusiveMaximum` 2 leave no value between them"),
        ({"type": "number", "allOf": [{"minimum": 7}, {"maximum": 6}]},
         "`minimum` 7 and `maximum` 6 are reversed"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "`minLength` 3 and `maxLength` 2 are reversed"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "`minItems` 3 and `maxItems` 2 are reversed"),
        ({"type": "object", "minProperties": 3, "maxProperties": 2},
         "`minProperties` 3 and `maxProperties` 2 are reversed"),
        ({"enum": ["a", "b"], "const": "c"}, "`enum`, `const` and `type` have no common value"),
        ({"enum": []}, "`enum`, `const` and `type` have no common value"),
        ({"type": "string", "enum": [1, 2]}, "`enum`, `const` and `type` have no common value"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "its parts contradict each other"),
        ({"type": "array", "items": {"type": "string", "enum": [], "maxLength": 9}},
         "`enum`, `const` and `type` have no common value"),
        ({"anyOf": [{"type": "number", "minimum": 5, "maximum": 3}, {"enum": [], "type": "string"}]},
         "`minimum` 5 and `maximum` 3 are reversed"),
    ],
)  # fmt: skip
def test_schema_that_no_value_matches_causes_a_warning(tmp_path: Path, schema: Any, why: str) -> None:
    stated = tool(schema={"type": "object", "properties": {"a": {**schema, "description": "A."}}})

    assert doubts(tmp_path, [stated]) == [("manifest", f"no value matches this schema: {why}")]
    assert doubts(tmp_path, [tool(result_schema=schema)]) == [("manifest", f"no value matches this schema: {why}")]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": 2, "maximum": 2},
        {"type": "string", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 0, "maxLength": 0},
        {"type": "number", "enum": [1, 2.5]},
        {"anyOf": [{"type": "number", "minimum": 5, "maximum": 3}, {"type": "string", "maxLength": 3}]},
        # Two of the four combinations of `anyOf` and `oneOf` contradict themselves, but the other two combinations do
        # not.
        {
            "type": "object",
            "anyOf": [{"properties": {"kind": {"const": kind}}} for kind in "ab"],
            "oneOf": [{"properties": {"kind": {"const": kind}}} for kind in "ab"],
        },
        False,
    ],
)
def test_satisfiable_or_false_schema_causes_no_warning(tmp_path: Path, schema: Any) -> None:
    assert doubts(tmp_path, [tool(schema={"type": "object", "properties": {"a": schema}})]) == []


def test_recursive_schema_is_checked_once(tmp_path: Path) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/properties/a"}, "n": {"type": "string", "enum": []}}}
    found = doubts(tmp_path, [tool(schema={"type": "object", "properties": {"a": node}})])

    assert found == [("manifest", "no value matches this schema: `enum`, `const` and `type` have no common value")]


@pytest.mark.parametrize("field", ["schema", "result_schema"])
def test_too_complex_schema_is_reported_within_a_second(tmp_path: Path, field: str) -> None:
    part = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"$ref": "#/properties/a"}]}}}
    schema: Any = {"type": "object", "properties": {"a": part, "next": {"allOf": [{"$ref": "#/properties/a"}, part]}}}
    manifest, warnings = tmp_path / "manifest.json", list[Fault]()
    manifest.write_bytes(orjson.dumps({**HEAD, "tools": [{**tool(), field: schema}]}))
    # This load imports modules. The time for these imports must not count towards the measured time.
    load_effective(manifest)

    begin = time.process_time()
    load_effective(manifest, warnings=warnings)

    assert time.process_time() - begin < 1
    assert [warning.message for warning in warnings if "too complex" in warning.message] == [
        "this schema is too complex to check completely"
    ]


def test_warning_names_the_source_line_of_the_faulty_part(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        "manifest_version: '1'\n"
        "tools:\n"
        "- name: read_note\n"
        "  schema:\n"
        "    type: object\n"
        "    properties:\n"
        "      filter:\n"
        "        type: object\n"
        "        properties:\n"
        "          age: {type: integer, minimum: 9, maximum: 1}\n"
    )
    warnings: list[Fault] = []
    load_effective(manifest, warnings=warnings)

    assert [warning.place.line for warning in warnings if warning.message.startswith("no value matches")] == [10]


NOBODY = "no approvers left: the list is empty, or both files name no common role"
DROPPED = "`$subject` has no effect: the manifest names approvers, and only approvers in both files count"


@pytest.mark.parametrize(
    ("stated", "governed", "found"),
    [
        ([], None, [("manifest", NOBODY)]),
        (["a.lead"], ["b.lead"], [("governance", NOBODY)]),
        (None, [], [("governance", NOBODY)]),
        (["a.lead"], ["a.lead", "b.lead"], []),
        (None, None, []),
        (None, ["$subject"], []),
        (None, ["a.lead", "$subject"], []),
        (["a.lead"], ["$subject"], [("governance", DROPPED)]),
        (["a.lead"], ["a.lead", "$subject"], [("governance", DROPPED)]),
    ],
)
def test_manifest_and_governance_file_without_common_approvers_cause_a_warning(
    tmp_path: Path, stated: Any, governed: Any, found: list[tuple[str, str]]
) -> None:
    fields = {} if stated is None else {"approval": {"approvers": stated}}
    actions = {} if governed is None else {"read_note": {"approval": {"approvers": governed}}}

    assert doubts(tmp_path, [tool() | fields], actions) == found


MANIFEST = "`$subject` is only allowed in the governance file, not in a manifest"
COMMIT = "`$subject` cannot approve commit-high: another person must"


@pytest.mark.parametrize(
    ("fields", "rules", "expected"),
    [
        ({"approval": {"approvers": ["a.lead", "$subject"]}}, {}, [("manifest", MANIFEST)]),
        ({"approval": {"approvers": ["$subject"]}}, {"approval": {"quorum": 2}}, [("manifest", MANIFEST)]),
        ({"effect_class": "commit-high"}, {"approval": {"approvers": ["$subject"]}}, [("governance", COMMIT)]),
        ({}, {"approval": {"approvers": ["$subject"]}, "effect_class": "commit-high"}, [("governance", COMMIT)]),
    ],
)
def test_approver_subject_is_a_fault_in_a_manifest_or_for_a_commit_high_tool(
    tmp_path: Path, fields: dict[str, Any], rules: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    entry = tool(idempotency={"required": True}) | fields

    with pytest.raises(FileFaultsError) as caught:
        doubts(tmp_path, [entry], {"read_note": rules})

    faults = [fault for fault in caught.value.faults if "$subject" in fault.message]
    assert [(Path(fault.place.file).stem, fault.message) for fault in faults] == expected


@pytest.mark.parametrize(
    ("fields", "rules", "file"),
    [
        ({"risk_tier": "low"}, {"risk_tier": "high"}, "governance"),
        ({"risk_tier": "high"}, {"risk_tier": "low"}, "manifest"),
        ({"risk_tier": "high"}, {"risk_tier": "high"}, "manifest"),
        ({}, {"risk_tier": "high"}, "governance"),
        ({"writes": "none"}, {"writes": "proposal"}, "governance"),
        ({"writes": "proposal"}, {"writes": "none"}, "manifest"),
    ],
)
def test_fault_of_a_merged_field_is_reported_in_the_file_that_gave_the_stricter_value(
    tmp_path: Path, fields: dict[str, Any], rules: dict[str, Any], file: str
) -> None:
    entry = {key: value for key, value in tool(effect_class="stage").items() if key != "risk_tier"} | fields

    with pytest.raises(FileFaultsError) as caught:
        doubts(tmp_path, [entry], {"read_note": rules})

    assert [Path(fault.place.file).stem for fault in caught.value.faults] == [file]
