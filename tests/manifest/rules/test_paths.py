"""Tests that the paths in expressions exist in the argument schema or in the session."""

from typing import Any

import pytest
import yaml

from pdp.errors import FileFaultsError
from pdp.manifest.load import load_both

NO_MEMBERS = "its parent has no such members"
SCHEMA: dict[str, Any] = yaml.safe_load("""
type: object
properties:
  amount: {type: number, description: x}
  lines:
    type: array
    description: x
    items: {type: object, properties: {price: {type: number}, tags: {type: array, items: {type: string}}}}
  payer: {$ref: '#/$defs/person', description: x}
  rates: {type: object, description: x, additionalProperties: {type: number}}
  notes: {type: object, description: x}
  coded: {type: object, description: x, patternProperties: {'^x_': {type: string}}, additionalProperties: false}
  either:
    description: x
    anyOf: [{type: object, properties: {a: {type: string}}}, {type: 'null'}, {const: {c: 1}}]
    unevaluatedProperties: false
  chosen:
    type: object
    description: x
    properties: {kind: {type: string}}
    if: {properties: {kind: {const: bank}}}
    then: {properties: {iban: {type: string}}}
    unevaluatedProperties: false
$defs:
  person: {type: object, properties: {id: {type: string}, boss: {$ref: '#/$defs/person'}}}
""")


def faults(tool: dict[str, Any], rules: dict[str, Any] | None = None) -> list[str]:
    entry = {"name": "pay_bill", "description": "x", "effect_class": "read-internal", "scopes": ["a"], "schema": SCHEMA}
    governance = None if rules is None else yaml.safe_dump({"actions": {"pay_bill": rules}}).encode()
    try:
        load_both(
            "m.yaml",
            None if rules is None else "g.yaml",
            manifest_text=yaml.safe_dump({"manifest_version": "1", "tools": [entry | tool]}).encode(),
            governance_text=governance,
        )
    except FileFaultsError as error:
        return [f"{fault.place.file} {fault.message} | {fault.hint}" for fault in error.faults]
    return []


def nowhere(path: str, hint: str, file: str = "m.yaml") -> list[str]:
    return [f"{file} `{path}` is not declared | {hint}"]


@pytest.mark.parametrize(
    "value",
    [
        "$arguments.amount", "$arguments.lines[0].price", "$arguments.lines[0].tags[1]",
        "$arguments.payer.boss.boss.id", "$arguments.rates.eur",
        '$arguments.rates["a b"]', "$arguments.notes.anything.at.all[0]",
        "$arguments.coded.x_1",
        "$arguments.either.a", "$arguments.either.c", "$arguments.chosen.iban", "$arguments.rates[arguments.payer.id]",
        "$arguments.lines[size(arguments.lines) - 1].price", "$arguments.lines.all(l, l.price > 0.0)",
        '$"eur" in arguments.rates || "x" in arguments.lines[0].tags', "$has(arguments.payer.boss)",
        '$"arguments.amuont" + arguments.payer.id', "$arguments.payer.id // arguments.amuont",
        "$session.claims.tenant.name", "$session.claims.act.act.sub", "$session.claims.limits.wire",
        "$session.facts.anything", "$session.config.anything", "$session.state.anything", "$session.purpose",
    ],
)  # fmt: skip
def test_expression_path_that_the_schema_allows_is_accepted(value: str) -> None:
    assert faults({"context": {"x": value}}) == []


@pytest.mark.parametrize(
    ("value", "path", "hint"),
    [
        ("$arguments.amuont", "arguments.amuont", "did you mean `amount`?"),
        ("$arguments.amuont + 1.0", "arguments.amuont", "did you mean `amount`?"),
        ('$arguments["amuont"]', "arguments.amuont", "did you mean `amount`?"),
        ("$has(arguments.amuont) ? 1 : 2", "arguments.amuont", "did you mean `amount`?"),
        ('$"amuont" in arguments', "arguments.amuont", "did you mean `amount`?"),
        ("$'bos' in (arguments.payer)", "arguments.payer.bos", "did you mean `boss`?"),
        ("$arguments.amount.value", "arguments.amount.value", NO_MEMBERS),
        ("$arguments.amount[0]", "arguments.amount[0]", NO_MEMBERS),
        ("$arguments.lines[0].prise", "arguments.lines[0].prise", "did you mean `price`?"),
        ("$arguments.lines.price", "arguments.lines.price", NO_MEMBERS),
        ("$arguments.lines[size(arguments.lines) - 1].prise", "arguments.lines[…].prise", "did you mean `price`?"),
        ("$arguments.lines.exists(l, l.prise > 1.0)", "arguments.lines[0].prise", "did you mean `price`?"),
        ("$arguments.payer.boss.boss.bos", "arguments.payer.boss.boss.bos", "did you mean `boss`?"),
        ("$arguments.payer[0]", "arguments.payer[0]", "known names: boss, id"),
        ("$arguments.payer[string(arguments.amount)]", "arguments.payer[…]", "known names: boss, id"),
        ("$arguments.rates.eur.cent", "arguments.rates.eur.cent", NO_MEMBERS),
        ("$arguments.coded.y_1", "arguments.coded.y_1", NO_MEMBERS),
        ("$arguments.chosen.ibna", "arguments.chosen.ibna", "did you mean `iban`?"),
        ("$session.claims.clearence", "session.claims.clearence", "did you mean `clearances`?"),
        ("$session.claims.act.suub", "session.claims.act.suub", "did you mean `sub`?"),
        ("$session.claims.sub.id", "session.claims.sub.id", NO_MEMBERS),
        ("$session.purpose.name", "session.purpose.name", NO_MEMBERS),
    ],
)
def test_misspelt_expression_path_in_a_mapping_is_a_fault(value: str, path: str, hint: str) -> None:
    for mapping in ({"x": value}, {"x": {"deep": [{"in": value}]}}):
        assert faults({"context": mapping}) == nowhere(path, hint)
        assert faults({}, {"context": mapping}) == nowhere(path, hint, "g.yaml")
    assert faults({"resource": {"type": "bill", "id": value}}) == nowhere(path, hint)


@pytest.mark.parametrize(
    "text", ["arguments.amount", "session.facts.x", "arguments['amount']", "arguments.lines[0].price"]
)
def test_expression_path_without_dollar_sign_is_a_fault(text: str) -> None:
    expected = (
        f"`{text}` is plain text here, not an expression | write `${text}` for the value, or `$'{text}'` for the text"
    )
    for mapping in ({"x": text}, {"x": {"deep": [{"in": text}]}}):
        assert faults({"context": mapping}) == [f"m.yaml {expected}"]
        assert faults({}, {"context": mapping}) == [f"g.yaml {expected}"]
    assert faults({"resource": {"type": "bill", "id": text}}) == [f"m.yaml {expected}"]


@pytest.mark.parametrize(
    "text", ["arguments", "session", "arguments.", "the arguments.amount", "argument.x", "$$arguments.x"]
)
def test_text_that_only_resembles_an_expression_path_is_accepted(text: str) -> None:
    assert faults({"context": {"x": text, "y": "$'arguments.amount'"}}) == []


@pytest.mark.parametrize(
    ("check", "path", "hint"),
    [
        ("call.amuont > 1.0", "call.amuont", "did you mean `amount`?"),
        ("plan.exists(p, p.tol == 'x')", "plan[0].tol", "did you mean `tool`?"),
        ("plan[size(plan) - 1].tol == 'x'", "plan[…].tol", "did you mean `tool`?"),
        ("config.mod == 'x'", "config.mod", "did you mean `mode`?"),
        ("state.sen == 1", "state.sen", "did you mean `seen`?"),
    ],
)
def test_misspelt_expression_path_in_an_invariant_is_a_fault(check: str, path: str, hint: str) -> None:
    invariant = {"id": "A", "rule": "r", "check": check}
    declared = {"config": [{"key": "mode"}], "state": {"reads": ["seen"], "effects": [{"key": "written"}]}}

    assert faults({"invariants": [invariant], **declared}) == nowhere(path, hint)


@pytest.mark.parametrize(
    ("check", "name", "kind"),
    [
        ("plan.exists(p, p.tool == 'pay_bil')", "pay_bil", "a tool"),
        ('plan.all(p, "pay_bil" != p.tool)', "pay_bil", "a tool"),
        ("plan.exists(p, p.tool in ['pay_bill', 'pay_bil'])", "pay_bil", "a tool"),
        ("plan[0].tool == 'pay_bil'", "pay_bil", "a tool"),
        ("'pay_bil' == plan[0].tool", "pay_bil", "a tool"),
        ("plan.exists(p, p.arguments.amuont == 1)", "amuont", "an argument of a tool"),
        ("plan.exists(p, has(p.arguments.amuont))", "amuont", "an argument of a tool"),
        ("plan.exists(p, 'amuont' in p.arguments)", "amuont", "an argument of a tool"),
        ("plan[0].arguments['amuont'] == 1", "amuont", "an argument of a tool"),
    ],
)
def test_plan_step_with_misspelt_tool_or_argument_is_a_fault(check: str, name: str, kind: str) -> None:
    hint = "did you mean `pay_bill`?" if kind == "a tool" else "did you mean `amount`?"

    assert faults({"invariants": [{"id": "A", "rule": "r", "check": check}]}) == [
        f"m.yaml `{name}`, expected in a plan step, is not {kind} of this manifest | {hint}"
    ]


@pytest.mark.parametrize(
    ("check", "more"),
    [
        ("call.amount > 1.0 && plan.all(p, p.tool != '' && p.arguments.anything == 1)", {}),
        ("config.anything == state.anything", {}),
        ("config.mode == state.seen", {"config": [{"key": "mode"}], "state": {"reads": ["seen"]}}),
        ("state.written == 1", {"state": {"effects": [{"key": "written"}]}}),
    ],
)
def test_invariant_may_read_declared_config_and_state(check: str, more: dict[str, Any]) -> None:
    assert faults({"invariants": [{"id": "A", "rule": "r", "check": check}], **more}) == []
