"""Tests of differences between manifests (signatures, versions, governance, pins) and of `pdp manifest diff`."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from pdp.cli.commands.manifest.files import diff as command
from pdp.manifest.diff import Direction
from pdp.manifest.effective import effective_manifest
from pdp.manifest.model import Manifest
from pdp.manifest.schema.differences import Bump, SchemaChange, schema_changes
from pdp.manifest.versions import ManifestDiff, manifest_diff
from tests.support.payments import EXAMPLE

SCHEMA = {
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "number", "minimum": 0},
        "kind": {"enum": ["bill", "tax"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def tool(**fields: Any) -> dict[str, Any]:
    base = {"name": "pay_bill", "version": "1.2.3", "schema": SCHEMA, "risk_tier": "low", "scopes": ["bills.pay"]}
    return {name: value for name, value in {**base, **fields}.items() if value is not None}


def differing(old: dict[str, Any], new: dict[str, Any], **manifest: Any) -> ManifestDiff:
    fields = [{name: values[at] for name, values in manifest.items()} for at in (0, 1)]
    made = [
        effective_manifest(Manifest.model_validate({"manifest_version": "1", "tools": [entry], **around}))
        for entry, around in zip((old, new), fields, strict=True)
    ]
    return manifest_diff(*made)


def changed(**properties: Any) -> dict[str, Any]:
    merged = {**SCHEMA["properties"], **properties}  # type: ignore[dict-item]
    return {**SCHEMA, "properties": {name: one for name, one in merged.items() if one is not None}}


def signature(old: Any, new: Any, part: str) -> list[tuple[str, str, str]]:
    return [(one.path, one.what, one.bump.name.lower()) for one in schema_changes(old, new, part)]


# Changes of signatures

# Each item has a new schema, the differences between SCHEMA and the new schema, and the version bump that the new
# schema needs as a request and as a response.
CHANGES: dict[str, tuple[Any, list[tuple[str, str]], str, str]] = {
    "nothing": (SCHEMA, [], "none", "none"),
    "a description": (changed(amount={"type": "number", "minimum": 0, "description": "x"}), [("", "text or spelling")],
        "patch", "patch"),
    "a new member": (changed(memo={"type": "string"}), [("memo", "is new")], "minor", "minor"),
    "a new member that is required": ({**changed(memo={"type": "string"}), "required": ["amount", "memo"]},
        [("memo", "is new, and required")], "major", "minor"),
    "a member that is gone": (changed(kind=None), [("kind", "was removed")], "major", "major"),
    "a member that became required": ({**SCHEMA, "required": ["amount", "kind"]}, [("kind", "became required")],
        "major", "minor"),
    "a member that became optional": ({**SCHEMA, "required": []}, [("amount", "became optional")], "minor", "major"),
    "a narrower type": (changed(amount={"type": "integer", "minimum": 0}), [("amount", "type number became integer")],
        "major", "minor"),
    "a wider type": (changed(amount={"type": ["number", "null"], "minimum": 0}),
        [("amount", "type number became null or number")], "minor", "major"),
    "another type": (changed(amount={"type": "string", "minimum": 0}), [("amount", "type number became string")],
        "major", "major"),
    "no type": (changed(amount={"minimum": 0}), [("amount", "type number became any")], "minor", "major"),
    "fewer values": (changed(kind={"enum": ["bill"]}), [("kind", "no longer 'tax'")], "major", "minor"),
    "more values": (changed(kind={"enum": ["bill", "tax", "fee"]}), [("kind", "now also 'fee'")], "minor", "major"),
    "any value": (changed(kind={}), [("kind", "now also any value")], "minor", "major"),
    "other values": (changed(kind={"enum": ["bill", "fee"]}), [("kind", "no longer 'tax'"), ("kind", "now also 'fee'")],
        "major", "major"),
    "a tighter bound": (changed(amount={"type": "number", "minimum": 1}), [("amount", "`minimum` 0 became 1")], "major",
        "minor"),
    "a looser bound": (changed(amount={"type": "number", "minimum": -1}), [("amount", "`minimum` 0 became -1")],
        "minor", "major"),
    "a bound that is gone": (changed(amount={"type": "number"}), [("amount", "`minimum` 0 became none")], "minor",
        "major"),
    "a bound that is new": (changed(amount={"type": "number", "minimum": 0, "maximum": 9}),
        [("amount", "`maximum` none became 9")], "major", "minor"),
    "another pattern of items": (changed(tags={"type": "array", "items": {"type": "string", "pattern": "^a"}}),
        [("tags[]", "`pattern` none became '^a'")], "major", "minor"),
    "items of another type": (changed(tags={"type": "array", "items": {"type": "integer"}}),
        [("tags[]", "type string became integer")], "major", "major"),
    "items of any type": (changed(tags={"type": "array"}), [("tags[]", "lost its type")], "minor", "major"),
    "another alternative": (changed(kind={"anyOf": [{"enum": ["bill", "tax"]}, {"type": "integer"}]}),
        [("kind", "an alternative was added")], "minor", "major"),
    "a condition": ({**SCHEMA, "if": {"required": ["kind"]}, "then": {"required": ["tags"]}},
        [("", "`if` none became {'required': ['kind']}"), ("", "`then` none became {'required': ['tags']}")], "major",
        "major"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_tool_signature_needs_the_expected_version_bump(name: str) -> None:
    new, said, request, response = CHANGES[name]
    for part, bump in (("request", request), ("response", response)):
        found = schema_changes(SCHEMA, new, part)
        assert [(one.path, one.what) for one in found] == said
        assert max((one.bump for one in found), default=Bump.NONE).name.lower() == bump


def test_allowing_additional_arguments_is_a_minor_change_and_forbidding_them_a_major_change() -> None:
    found = signature(SCHEMA, {**SCHEMA, "additionalProperties": True}, "request")
    assert found == [("", "additional members: none became any", "minor")]
    assert signature({**SCHEMA, "additionalProperties": True}, SCHEMA, "request")[0][2] == "major"


def test_member_removed_from_an_open_object_breaks_only_responses() -> None:
    old = changed(kind={"type": "object", "properties": {"tags": {"type": "string"}}})

    assert signature(old, changed(kind={"type": "object"}), "request") == [
        ("kind", "additional members: none became any", "minor")
    ]
    assert signature(old, changed(kind={"type": "object"}), "response") == [("kind.tags", "was removed", "major")]
    assert signature({**SCHEMA, "additionalProperties": False}, SCHEMA, "response") == [
        ("", "additional members: none became any", "major")
    ]


def test_open_object_argument_counts_as_closed_after_it_declares_members() -> None:
    old, new = (
        changed(memo={"type": "object"}),
        changed(memo={"type": "object", "properties": {"a": {"type": "string"}}}),
    )
    named = ("memo.a", "is new", "minor")

    assert signature(old, new, "request") == [named, ("memo", "additional members: any became none", "major")]
    assert signature(old, new, "response") == [named]


def test_manifest_diff_compares_schema_definitions_by_content() -> None:
    old = {**changed(amount={"$ref": "#/$defs/a"}), "$defs": {"a": {"type": "number", "minimum": 0}}}

    assert signature(SCHEMA, old, "response") == [("", "text or spelling", "patch")]
    new = {**old, "$defs": {"a": {"type": "integer", "minimum": 0}}}
    assert signature(old, new, "response") == [("amount", "type number became integer", "minor")]


def test_manifest_diff_compares_a_recursive_schema_definition_once() -> None:
    def tree(kind: str) -> dict[str, Any]:
        node = {
            "type": "object",
            "properties": {"value": {"type": kind}, **{key: {"$ref": "#/$defs/node"} for key in "abcde"}},
        }
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}

    found = signature(tree("string"), tree("integer"), "response")
    assert ("value", "type string became integer", "major") in found


def test_added_response_schema_is_minor_and_removed_one_major() -> None:
    assert signature(None, SCHEMA, "response") == [("", "the response's schema is stated", "minor")]
    assert signature(SCHEMA, None, "response") == [("", "the response's schema is no longer stated", "major")]


# Versions of tools

MINOR, MAJOR = changed(memo={"type": "string"}), changed(kind=None)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ({}, {"schema": MINOR, "version": "1.3.0"}, None),
        ({}, {"schema": MINOR, "version": "2.0.0"}, None),
        ({}, {"schema": MINOR, "version": "1.2.4"}, "a minor change from version 1.2.3 to 1.2.4 needs at least 1.3.0"),
        ({}, {"schema": MINOR}, "a minor change from version 1.2.3 to 1.2.3 needs at least 1.3.0"),
        ({}, {"schema": MAJOR, "version": "2.0.0"}, None),
        ({}, {"schema": MAJOR, "version": "1.3.0"}, "a major change from version 1.2.3 to 1.3.0 needs at least 2.0.0"),
        ({"version": "0.2.0"}, {"schema": MAJOR, "version": "0.3.0"},
         "a major change from version 0.2.0 to 0.3.0 needs at least 1.0.0"),
        ({}, {"version": "1.2.2"}, "version 1.2.2 is lower than 1.2.3"),
        ({}, {"version": "2.0.0-rc.1", "schema": MAJOR}, None),
        ({}, {"version": "9.0.0"}, None),
        ({}, {"scopes": []}, None),
        ({}, {"schema": {**SCHEMA, "description": "x"}}, None),
        ({}, {"version": None}, "has no version, although its signature or version changed"),
        ({"version": None}, {"version": None, "schema": MAJOR},
         "has no version, although its signature or version changed"),
        ({"version": None}, {"version": None, "schema": {**SCHEMA, "description": "x"}}, None),
        ({"version": None}, {"schema": MAJOR}, None),
    ],
)  # fmt: skip
def test_tool_version_that_is_too_low_for_its_changes_is_a_fault(
    old: dict[str, Any], new: dict[str, Any], fault: str | None
) -> None:
    (found,) = differing(tool(**old), tool(**new)).tools
    assert found.fault == fault


def test_added_and_removed_tools_need_no_version_bump() -> None:
    found = differing(tool(), tool(name="send_bill", version=None))

    assert [(one.tool, one.kind, one.fault) for one in found.tools] == [
        ("pay_bill", "removed", None),
        ("send_bill", "added", None),
    ]
    assert [one.governance[0].direction for one in found.tools] == [Direction.TIGHTENS, Direction.LOOSENS]


def test_manifests_with_equal_content_do_not_differ() -> None:
    found = differing(tool(), tool(sla={"p50": "200ms"}))
    assert (found.tools, found.pins, found.faults) == ((), (), ())


@pytest.mark.parametrize(
    "new",
    [
        {"description": "Pay a bill. Never ask."},
        {"description": None},
        {"invariants": [{"id": "SMALL", "rule": "Quite small", "check": "call.amount < 5"}]},
    ],
)
def test_changed_description_needs_only_a_patch_version(new: dict[str, Any]) -> None:
    old = {"description": "Pay a bill", "invariants": [{"id": "SMALL", "rule": "Small", "check": "call.amount < 5"}]}
    (found,) = differing(tool(**old), tool(**{**old, **new})).tools

    assert (found.signature, found.governance, found.fault) == (
        (SchemaChange("description", "", "changed", Bump.PATCH),), (), None,
    )  # fmt: skip


def test_change_to_an_invariant_text_that_the_description_contains_is_no_difference() -> None:
    rule = {"id": "SMALL", "rule": "bill", "check": "call.amount < 5"}
    other = {**rule, "rule": "Pay"}
    assert (
        differing(
            tool(description="Pay a bill", invariants=[rule]), tool(description="Pay a bill", invariants=[other])
        ).tools
        == ()
    )


# Changes of governance

LOOSENS, TIGHTENS, UNCLEAR = Direction.LOOSENS, Direction.TIGHTENS, Direction.UNCLEAR
LIMIT = {"limit": "bills.single", "argument": "amount"}
DAILY = {"limit": "bills.daily", "argument": "amount", "per": "subject"}
RULE = {"id": "SMALL", "rule": "Small", "check": "call.amount < 5"}

# Each item has strict fields and lax fields. The change from strict to lax fields loosens the manifest, and the item
# ends with the name and the text of this change.
OPPOSITES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"risk_tier": "high"}, {"risk_tier": "low"}, "risk_tier", "changed"),
    ({"effect_class": "commit-high"}, {"effect_class": "commit-low"}, "effect_class", "changed"),
    ({"scopes": ["a", "b"]}, {"scopes": ["a"]}, "scopes", "removed b"),
    ({"purposes": ["a"]}, {"purposes": ["a", "b"]}, "purposes", "added b"),
    ({"limits": [LIMIT]}, {"limits": []}, "limits", "removed bills.single amount"),
    ({"limits": [LIMIT, {**DAILY, "window": "P1D"}]}, {"limits": [LIMIT, {**DAILY, "window": "PT1H"}]}, "limits",
     "window of bills.daily: PT24H -> PT1H"),
    ({"provenance": {"required": ["kind"]}}, {"provenance": {"required": []}}, "provenance.required", "removed kind"),
    ({"sensitive": ["amount"]}, {}, "sensitive", "removed amount"),
    ({"approval": {"approvers": ["a"]}}, {"approval": {"approvers": ["a", "b"]}}, "approval.approvers", "added b"),
    ({"approval": {"approvers": []}}, {"approval": {"approvers": ["$subject"]}}, "approval.approvers",
     "added $subject"),
    ({"approval": {"quorum": 2}}, {"approval": {"quorum": 1}}, "approval.quorum", "changed"),
    ({"approval": {"expires": "PT1H"}}, {"approval": {"expires": "P1D"}}, "approval.expires", "changed"),
    ({}, {"max_bytes": 300_000}, "max_bytes", "changed"),
    ({"approval": {"unless_within_limits": False}}, {"approval": {"unless_within_limits": True}},
     "approval.unless_within_limits", "changed"),
    ({"idempotency": {"required": True}}, {"idempotency": {"required": False}}, "idempotency.required", "changed"),
    ({"writes": "canonical"}, {"writes": "none"}, "writes", "changed"),
    ({"idempotency": {"required": True}}, {"idempotency": {"required": True, "key": "derive(args)"}}, "idempotency.key",
     "changed"),
    ({"safety": {"requires": ["gpu"]}}, {"safety": {}}, "safety.requires", "removed gpu"),
    ({"result": {}}, {"result": {"integrity": "trusted"}}, "result.integrity", "changed"),
    ({"result": {}}, {"result": {"trusted": ["/id"]}}, "result.trusted", "added /id"),
    ({"result": {"created": []}}, {"result": {"created": ["/id"]}}, "result.created", "added /id"),
    ({"result": {}}, {"result": {"names": ["/title"]}}, "result.names", "added /title"),
    ({"result": {}}, {"result": {"parties": ["/sender"]}}, "result.parties", "added /sender"),
    ({"result": {"integrity": "trusted", "parties": ["/sender"]}}, {"result": {"integrity": "trusted"}},
     "result.parties", "removed /sender"),
    ({"result": {"markings": ["a", "b"]}}, {"result": {"markings": ["a"]}}, "result.markings", "removed b"),
    ({"admits": []}, {"admits": ["a"]}, "admits", "added a"),
    ({"result": {}, "destructive": True}, {"result": {}}, "destructive", "changed"),
    ({"flow": {"profile": "strict"}}, {"flow": {}}, "flow.profile", "changed"),
    ({"flow": {}}, {"flow": {"profile": "watch"}}, "flow.profile", "changed"),
    ({"flow": {"rules": ["not_anchored"]}}, {"flow": {}}, "flow.rules", "removed not_anchored"),
    ({"flow": {"otherwise": "deny"}}, {"flow": {}}, "flow.otherwise", "changed"),
    ({"roles": {"amount": "body"}}, {"roles": {}}, "roles.amount", "changed"),
    ({"result": {}}, {}, "flow.profile", "changed"),
]  # fmt: skip


@pytest.mark.parametrize(("strict", "lax", "field", "what"), OPPOSITES, ids=[one[2] for one in OPPOSITES])
def test_reverse_of_a_change_that_loosens_a_tool_counts_as_tightening(
    strict: Any, lax: Any, field: str, what: str
) -> None:
    (loosened,) = differing(tool(**strict), tool(**lax)).tools
    (tightened,) = differing(tool(**lax), tool(**strict)).tools

    assert [(one.name, one.direction, one.what) for one in loosened.governance] == [(field, LOOSENS, what)]
    assert [(one.name, one.direction) for one in tightened.governance] == [(field, TIGHTENS)]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"markings": ["a"]}, {"markings": ["a", "b"]},
         [("markings", LOOSENS, "added b: data with this marking may be touched"),
          ("markings", TIGHTENS, "added b: data of unknown markings needs clearance for it")]),
        ({"markings": ["a", "b"]}, {"markings": ["a"]},
         [("markings", LOOSENS, "removed b: data of unknown markings no longer needs clearance for it"),
          ("markings", TIGHTENS, "removed b: data with this marking may no longer be touched")]),
        ({}, {"purposes": ["a"]}, [("purposes", TIGHTENS, "restricted")]),
        ({"purposes": []}, {}, [("purposes", LOOSENS, "no longer restricted")]),
        ({"scopes": ["a"]}, {"scopes": ["b"]}, [("scopes", LOOSENS, "removed a"), ("scopes", TIGHTENS, "added b")]),
        ({}, {"effect_class": "pure"},
         [("approval.unless_within_limits", TIGHTENS, "changed"), ("effect_class", UNCLEAR, "changed")]),
        ({}, {"invariants": [RULE]}, [("invariants.SMALL", TIGHTENS, "added")]),
        ({"invariants": [RULE]}, {}, [("invariants.SMALL", LOOSENS, "removed")]),
        ({"invariants": [RULE]}, {"invariants": [{**RULE, "check": "true"}]},
         [("invariants.SMALL", UNCLEAR, "changed")]),
        ({"invariants": [RULE]}, {"invariants": [{**RULE, "rule": "Quite small"}]}, []),
        ({}, {"resource": {"type": "bill", "id": "b"}},
         [("resource.id", UNCLEAR, "changed"), ("resource.type", UNCLEAR, "changed")]),
        ({}, {"pdp_action": "bills.pay"}, [("pdp_action", UNCLEAR, "changed")]),
        ({}, {"timeout": "PT1S"}, [("timeout", UNCLEAR, "changed")]),
        ({}, {"commits": ["pay_all"]}, [("commits", LOOSENS, "added pay_all")]),
        ({"roles": {}}, {"roles": {"amount": "value"}}, [("roles.amount", UNCLEAR, "changed")]),
        ({"roles": {"amount": "value"}}, {"roles": {}}, [("roles.amount", LOOSENS, "changed")]),
        ({"roles": {"amount": "destination"}}, {"roles": {"amount": "value"}}, [("roles.amount", LOOSENS, "changed")]),
        ({"roles": {"amount": "object"}}, {"roles": {"amount": "object", "/amount/*/unit": "body"}},
         [("roles./amount/*/unit", LOOSENS, "changed")]),
        ({"roles": {"amount": "object"}}, {"roles": {"/amount/*/unit": "object"}},
         [("roles.amount", LOOSENS, "changed")]),
        ({"roles": {"amount": "body"}}, {"roles": {"amount": "body", "/amount/*/unit": "object"}},
         [("roles./amount/*/unit", UNCLEAR, "changed")]),
        ({"roles": {"amount": "url"}}, {"roles": {"amount": "destination"}}, [("roles.amount", UNCLEAR, "changed")]),
        ({"result": {"integrity": "trusted", "trusted": ["/id"]}}, {"result": {"trusted": ["/date"]}},
         [("result.integrity", TIGHTENS, "changed"), ("result.trusted", LOOSENS, "added /date"),
          ("result.trusted", TIGHTENS, "removed /id")]),
        ({}, {"result": {"integrity": "trusted", "trusted": ["/id"]}, "roles": {"amount": "value"}, "admits": ["a"]},
         [("admits", TIGHTENS, "added a"), ("flow.profile", TIGHTENS, "changed"),
          ("result.integrity", TIGHTENS, "changed"), ("result.trusted", TIGHTENS, "added /id"),
          ("roles.amount", TIGHTENS, "changed")]),
        ({"result": {"markings": ["a"]}, "scopes": ["a"]}, {"scopes": ["a", "b"]},
         [("flow.profile", LOOSENS, "changed"), ("result.markings", LOOSENS, "removed a"),
          ("scopes", TIGHTENS, "added b")]),
    ],
)  # fmt: skip
def test_governance_change_is_reported_as_loosening_or_tightening_as_expected(old: Any, new: Any, changes: Any) -> None:
    found = differing(tool(**old), tool(**new)).tools
    assert [[(one.name, one.direction, one.what) for one in each.governance] for each in found] == (
        [] if changes is None else [changes]
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"purpose": "$session.purpose"}, {"purpose": "$arguments.purpose"}, ("purpose", "loosens")),
        ({"purpose": "care"}, {"purpose": '$has(arguments.p) ? arguments.p : "care"'}, ("purpose", "loosens")),
        ({}, {"screening": {"status": "$arguments.status"}}, ("screening.status", "loosens")),
        ({"a": ["$arguments.x", "$session.run_id"]}, {"a": ["$arguments.x", "$arguments.y"]}, ("a.1", "loosens")),
        ({"purpose": "$arguments.purpose"}, {"purpose": "$session.purpose"}, ("purpose", "unclear")),
        ({"purpose": "$arguments.purpose"}, {"purpose": "$arguments.reason"}, ("purpose", "unclear")),
        ({"purpose": "care"}, {"purpose": "arguments"}, ("purpose", "unclear")),
        ({"screened": "$session.facts.a"}, {"screened": "clear"}, ("screened", "loosens")),
        (
            {"screened": "$session.facts.a"},
            {"screened": '$session.claims.desk == "treasury" ? "clear" : session.facts.a'},
            ("screened", "loosens"),
        ),
        ({"screened": '$session.facts.a == "x"'}, {"screened": '$session.facts.b == "x"'}, ("screened", "unclear")),
        ({"screened": "$session.facts.a"}, {}, ("screened", "unclear")),
    ],
)
@pytest.mark.parametrize("field", ["context", "resource"])
def test_replacing_a_session_value_by_an_argument_or_constant_counts_as_loosening(
    field: str, old: Any, new: Any, expected: tuple[str, str]
) -> None:
    kind = {"type": "bill", "id": "b"} if field == "resource" else {"kind": "bill"}
    (difference,) = differing(tool(**{field: kind | old}), tool(**{field: kind | new})).tools

    name, direction = expected
    assert [(change.name, change.direction) for change in difference.governance] == [(f"{field}.{name}", direction)]


def test_long_expressions_are_shortened_up_to_their_first_difference() -> None:
    same = " || ".join(f"session.facts.f{number}" for number in range(30))
    old, new = (tool(context={"k": f"${same} || session.facts.{name}"}) for name in ("screened", "trusted"))
    (difference,) = differing(old, new).tools

    assert [change.line for change in difference.governance] == [
        "context.k: …29 || session.facts.screened -> …29 || session.facts.trusted"
    ]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (None, {"a": "1.2.3"}, [("agents", TIGHTENS, "pinned")]),
        ({"a": "1.2.3"}, None, [("agents", LOOSENS, "no longer pinned")]),
        ({"a": "1.2.3"}, {"a": "1.2.3", "b": "1.2.3"}, [("agents.b.pay_bill", LOOSENS, "pinned")]),
        ({"a": "1.2.3"}, {}, [("agents.a.pay_bill", TIGHTENS, "no longer pinned")]),
        ({"a": "1.2.2"}, {"a": "1.2.3"}, [("agents.a.pay_bill", UNCLEAR, "pinned to another version")]),
        ({"a": "1.2.3"}, {"a": "1.2.3"}, []),
        (None, None, []),
    ],
)
def test_change_of_pinned_tool_versions_is_reported_as_loosening_or_tightening_as_expected(
    old: Any, new: Any, changes: Any
) -> None:
    def agents(pins: dict[str, str] | None) -> Any:
        return None if pins is None else [{"id": agent, "tools": {"pay_bill": one}} for agent, one in pins.items()]

    found = differing(tool(), tool(), agents=(agents(old), agents(new)))
    assert [(one.name, one.direction, one.what) for one in found.pins] == changes
    assert found.directions() == {direction for _, direction, _ in changes}


# The command `pdp manifest diff`


def written(folder: Path, name: str, *tools: dict[str, Any]) -> Path:
    file = folder / name
    file.write_text(json.dumps({"manifest_version": "1", "tools": list(tools)}))
    return file


def ran(old: Path, new: Path, **options: Any) -> int:
    settings = {"old_governance": None, "governance": None, "fail_on": None, "as_json": False, **options}
    with pytest.raises(typer.Exit) as caught:
        command(old, new, **settings)
    return caught.value.exit_code


def test_diff_command_prints_the_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = written(tmp_path, "old.json", tool(), tool(name="send_bill"))
    new = written(tmp_path, "new.json", tool(schema=MAJOR, risk_tier="medium", scopes=["bills.all"], description="x"))

    assert ran(old, new) == 1
    assert capsys.readouterr().out == (
        "pay_bill changed, 1.2.3 -> 1.2.3\n"
        "  major    request kind was removed\n"
        "  patch    description changed\n"
        "  narrower (proved) risk_tier: low -> medium\n"
        "  loosens   scopes: removed bills.pay\n"
        "  narrower (proved) scopes: added bills.all\n"
        "  version  a major change from version 1.2.3 to 1.2.3 needs at least 2.0.0\n"
        "send_bill removed\n"
        "  narrower (proved) tools: may no longer be called\n"
        "2 of the tools differ, 1 version is missing a bump\n"
    )


def test_diff_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = written(tmp_path, "old.json", tool()), written(tmp_path, "new.json", tool(schema=MINOR, scopes=["a"]))
    assert ran(old, new, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    fault = "a minor change from version 1.2.3 to 1.2.3 needs at least 1.3.0"
    lists = {"old": ["bills.pay"], "new": ["a"]}

    assert found["old"]["digest"] != found["new"]["digest"]
    assert {name: found[name] for name in ("tools", "pins", "faults")} == {
        "tools": [
            {
                "tool": "pay_bill", "kind": "changed", "old_version": "1.2.3", "new_version": "1.2.3",
                "needed": "minor", "fault": fault,
                "signature": [{"part": "request", "path": "memo", "what": "is new", "bump": "minor"}],
                "governance": [
                    {"name": "scopes", "direction": "loosens", **lists, "what": "removed bills.pay", "where": "",
                     "word": "loosens"},
                    {"name": "scopes", "direction": "tightens", **lists, "what": "added a", "where": "",
                     "word": "narrower (proved)"},
                ],
            }
        ],
        "pins": [],
        "faults": [f"pay_bill: {fault}"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "plain", "loosening", "unclear"),
    [
        ({}, 0, 0, 0),
        ({"risk_tier": "medium"}, 0, 0, 0),
        ({"scopes": []}, 0, 1, 1),
        ({"timeout": "PT9S"}, 0, 0, 1),
        ({"markings": ["a"]}, 0, 1, 1),
        ({"description": "Pay all bills"}, 0, 0, 0),
        ({"schema": MINOR, "version": "1.3.0"}, 0, 0, 0),
        ({"schema": MINOR}, 1, 1, 1),
    ],
)
def test_fail_on_option_sets_which_differences_make_the_diff_command_fail(
    tmp_path: Path, fields: Any, plain: int, loosening: int, unclear: int
) -> None:
    old, new = written(tmp_path, "old.json", tool()), written(tmp_path, "new.json", tool(**fields))
    assert [ran(old, new, fail_on=kind) for kind in (None, "loosening", "unclear")] == [plain, loosening, unclear]


def test_diff_command_compares_governance_files(capsys: pytest.CaptureFixture[str]) -> None:
    manifest, governance = EXAMPLE / "manifest.json", EXAMPLE / "governance.yaml"

    assert ran(manifest, manifest, governance=governance, old_governance=governance) == 0
    assert capsys.readouterr() == ("no tool differs, no versions are missing a bump\n", "")
    assert ran(manifest, manifest, governance=governance) == 0
    out, err = capsys.readouterr()
    assert "  unclear   effect_class: not stated -> read-internal\n  loosens   scopes: added payments.lookup\n" in out
    alone = "note: only {} has a governance file, so all its rules are shown as changed; use {}\n"
    assert err == alone.format("NEW", "--old-governance")
    assert ran(manifest, manifest, old_governance=governance) == 0
    assert capsys.readouterr().err == alone.format("OLD", "--governance")
