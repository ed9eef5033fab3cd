"""What loads and can hardly be meant is a warning: impossible schemas, nobody who may approve."""

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
    """File and message of each doubt; a strict load takes them for faults."""
    manifest, governance = folder / "manifest.json", folder / "governance.json"
    manifest.write_bytes(orjson.dumps({**HEAD, "tools": tools}))
    governance.write_bytes(orjson.dumps({"actions": actions or {}}))
    warnings: list[Fault] = []
    load_effective(manifest, governance, warnings=warnings)
    found = [
        (Path(warning.place.file).stem, warning.message)
        for warning in warnings
        if warning.message.startswith(("no value fits", "nobody can", "`$subject`"))
    ]
    if found:
        with pytest.raises(FileFaultsError) as caught:
            load_effective(manifest, governance, strict=True)
        assert {message for _, message in found} <= {fault.message for fault in caught.value.faults}
    return found


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "`minimum` 5 and `maximum` 3 are the wrong way round"),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2},
         "`exclusiveMinimum` 2 and `maximum` 2 leave nothing between them"),
        ({"type": "number", "minimum": 2, "exclusiveMaximum": 2},
         "`minimum` 2 and `exclusiveMaximum` 2 leave nothing between them"),
        ({"type": "number", "allOf": [{"minimum": 7}, {"maximum": 6}]},
         "`minimum` 7 and `maximum` 6 are the wrong way round"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "`minLength` 3 and `maxLength` 2 are the wrong way round"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "`minItems` 3 and `maxItems` 2 are the wrong way round"),
        ({"type": "object", "minProperties": 3, "maxProperties": 2},
         "`minProperties` 3 and `maxProperties` 2 are the wrong way round"),
        ({"enum": ["a", "b"], "const": "c"}, "no constant is left of `enum`, `const` and `type`"),
        ({"enum": []}, "no constant is left of `enum`, `const` and `type`"),
        ({"type": "string", "enum": [1, 2]}, "no constant is left of `enum`, `const` and `type`"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "its parts exclude each other"),
        ({"type": "array", "items": {"type": "string", "enum": [], "maxLength": 9}},
         "no constant is left of `enum`, `const` and `type`"),
        ({"anyOf": [{"type": "number", "minimum": 5, "maximum": 3}, {"enum": [], "type": "string"}]},
         "`minimum` 5 and `maximum` 3 are the wrong way round"),
    ],
)  # fmt: skip
def test_a_schema_that_no_value_fits(tmp_path: Path, schema: Any, why: str) -> None:
    stated = tool(schema={"type": "object", "properties": {"a": {**schema, "description": "A."}}})

    assert doubts(tmp_path, [stated]) == [("manifest", f"no value fits this schema: {why}")]
    assert doubts(tmp_path, [tool(result_schema=schema)]) == [("manifest", f"no value fits this schema: {why}")]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": 2, "maximum": 2},
        {"type": "string", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 0, "maxLength": 0},
        {"type": "number", "enum": [1, 2.5]},
        {"anyOf": [{"type": "number", "minimum": 5, "maximum": 3}, {"type": "string", "maxLength": 3}]},
        {  # of the four combinations two exclude each other
            "type": "object",
            "anyOf": [{"properties": {"kind": {"const": kind}}} for kind in "ab"],
            "oneOf": [{"properties": {"kind": {"const": kind}}} for kind in "ab"],
        },
        False,
    ],
)
def test_a_schema_that_some_value_fits_or_that_says_that_none_does(tmp_path: Path, schema: Any) -> None:
    assert doubts(tmp_path, [tool(schema={"type": "object", "properties": {"a": schema}})]) == []


def test_a_recursive_schema_is_read_once(tmp_path: Path) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/properties/a"}, "n": {"type": "string", "enum": []}}}
    found = doubts(tmp_path, [tool(schema={"type": "object", "properties": {"a": node}})])

    assert found == [("manifest", "no value fits this schema: no constant is left of `enum`, `const` and `type`")]


@pytest.mark.parametrize("field", ["schema", "result_schema"])
def test_a_schema_that_unfolds_without_end_is_said_so_within_a_second(tmp_path: Path, field: str) -> None:
    part = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"$ref": "#/properties/a"}]}}}
    schema: Any = {"type": "object", "properties": {"a": part, "next": {"allOf": [{"$ref": "#/properties/a"}, part]}}}
    manifest, warnings = tmp_path / "manifest.json", list[Fault]()
    manifest.write_bytes(orjson.dumps({**HEAD, "tools": [{**tool(), field: schema}]}))
    load_effective(manifest)  # what is only imported the first time

    begin = time.process_time()
    load_effective(manifest, warnings=warnings)

    assert time.process_time() - begin < 1
    assert [each.message for each in warnings if "unfolds" in each.message] == [
        "this schema unfolds too far to be checked to its end"
    ]


def test_a_doubt_is_shown_where_the_part_stands(tmp_path: Path) -> None:
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

    assert [one.place.line for one in warnings if one.message.startswith("no value fits")] == [10]


NOBODY = "nobody can approve this: its approvers are none"
DROPPED = "`$subject` is without effect: the manifest names approvers, and who approves is named by both"


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
def test_approvers_that_are_nobody(tmp_path: Path, stated: Any, governed: Any, found: list[tuple[str, str]]) -> None:
    fields = {} if stated is None else {"approval": {"approvers": stated}}
    actions = {} if governed is None else {"read_note": {"approval": {"approvers": governed}}}

    assert doubts(tmp_path, [tool() | fields], actions) == found


MANIFEST = "`$subject` in a manifest: its author does not decide that people approve for their own agents"
COMMIT = "`$subject` approves no commit-high: that takes somebody else"


@pytest.mark.parametrize(
    ("fields", "rules", "expected"),
    [
        ({"approval": {"approvers": ["a.lead", "$subject"]}}, {}, [("manifest", MANIFEST)]),
        ({"approval": {"approvers": ["$subject"]}}, {"approval": {"quorum": 2}}, [("manifest", MANIFEST)]),
        ({"effect_class": "commit-high"}, {"approval": {"approvers": ["$subject"]}}, [("governance", COMMIT)]),
        ({}, {"approval": {"approvers": ["$subject"]}, "effect_class": "commit-high"}, [("governance", COMMIT)]),
    ],
)
def test_where_the_subject_approves_nothing(
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
def test_a_fault_of_both_files_together_is_that_of_the_one_that_made_it(
    tmp_path: Path, fields: dict[str, Any], rules: dict[str, Any], file: str
) -> None:
    entry = {key: value for key, value in tool(effect_class="stage").items() if key != "risk_tier"} | fields

    with pytest.raises(FileFaultsError) as caught:
        doubts(tmp_path, [entry], {"read_note": rules})

    assert [Path(fault.place.file).stem for fault in caught.value.faults] == [file]
