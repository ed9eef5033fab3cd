"""Rego broken in one place: each way of it on small modules, whole sets of what is changed and where."""

import json
from collections import Counter
from pathlib import Path

import pytest

from pdp.workbench.mutation.edits import manifest_mutants, rego_mutants
from pdp.workbench.mutation.mutant import RegoMutant
from pdp.workbench.opa.edits import edits
from pdp.workbench.opa.modules import Module
from pdp.workbench.opa.syntax import Source, parse_modules
from pdp.workbench.scenarios.files.suite import load_suite

pytestmark = pytest.mark.opa

HEAD = "package custom.concerns.small\n\n"
WEAKENED = {
    "equality weakened", "membership weakened", "text test weakened", "set difference weakened", "key weakened",
    "number bounded", "number rounded", "number shifted", "compared by day", "first element only",
}  # fmt: skip
EVERY = "every x in input.xs { x in input.ys }"


def found(opa: Path, text: str) -> set[tuple[str, int, str, str]]:
    """Every edit of a module, the lines counted behind its head: kind, line, what stood there, what does then."""
    whole = HEAD + text
    module = Module(Path("small.rego"), whole, custom=True)
    tree = parse_modules(opa, {"small.rego": module})["small.rego"]
    source = Source(Path("small.rego"), whole)
    return {
        (edit.kind, source.place(edit.span[0]).line - HEAD.count("\n"), whole[slice(*edit.span)], edit.text)
        for edit in edits(tree, source)
    }


def condition(line: int, text: str) -> set[tuple[str, int, str, str]]:
    return {("condition dropped", line, text, "true"), ("condition negated", line, text, f"not {text}")}


def number(line: int, value: int) -> set[tuple[str, int, str, str]]:
    return {("constant moved", line, str(value), str(value + by)) for by in (1, -1)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "p if {\n\tinput.a\n\tnot input.b\n}\n",
            {
                ("rule dropped", 2, "", "false\n\t"),
                *condition(2, "input.a"),
                ("condition dropped", 3, "not input.b", "true"),
                ("condition negated", 3, "not input.b", "input.b"),
            },
            id="conditions on lines of their own",
        ),
        pytest.param(
            'p contains "x" if input.a\n',
            {
                ("constant moved", 1, '"x"', '"x~"'),
                ("rule dropped", 1, "input.a", "{ false; input.a }"),
                *condition(1, "input.a"),
            },
            id="a condition without braces",
        ),
        pytest.param(
            "p if { input.a < 3 }\n",
            {
                ("rule dropped", 1, "", "false; "),
                *condition(1, "input.a < 3"),
                ("comparison moved", 1, "<", "<="),
                *number(1, 3),
            },
            id="less than a number",
        ),
        *(
            pytest.param(
                f"f(a, b) if {{ a {before} b }}\n",
                {
                    ("rule dropped", 1, "", "false; "),
                    *condition(1, f"a {before} b"),
                    ("comparison moved", 1, before, after),
                },
                id=f"{before} becomes {after}",
            )
            for before, after in (("<=", "<"), (">", ">="), (">=", ">"), ("==", "!="), ("!=", "=="))
        ),
        pytest.param(
            'p := {"b", "a"} - data.q\n',
            {
                ("rule dropped", 1, "", " if { false }"),
                ("element lost", 1, '{"b", "a"}', '{"a"}'),
                ("element lost", 1, '{"b", "a"}', '{"b"}'),
                ("constant moved", 1, '"b"', '"b~"'),
                ("constant moved", 1, '"a"', '"a~"'),
                ("set operation swapped", 1, "-", "&"),
                ("set operation swapped", 1, "-", "|"),
            },
            id="sets, whose elements OPA lists in another order",
        ),
        pytest.param(
            'p := {"z": 1, "a": [true]}\n',
            {
                ("rule dropped", 1, "", " if { false }"),
                ("element lost", 1, '{"z": 1, "a": [true]}', '{"a": [true]}'),
                ("element lost", 1, '{"z": 1, "a": [true]}', '{"z": 1}'),
                *number(1, 1),
                ("element lost", 1, "[true]", "[]"),
                ("constant moved", 1, "true", "false"),
            },
            id="an object",
        ),
        pytest.param(
            "p := object.get(input.a, [], null)\n\nq := [{}, set()]\n",
            {
                ("rule dropped", 1, "", " if { false }"),
                ("constant moved", 1, "[]", "[false]"),
                ("constant moved", 1, "null", "false"),
                ("rule dropped", 3, "", " if { false }"),
                ("element lost", 3, "[{}, set()]", "[set()]"),
                ("element lost", 3, "[{}, set()]", "[{}]"),
                ("constant moved", 3, "{}", '{"~": false}'),
                ("constant moved", 3, "set()", "{false}"),
            },
            id="what is empty",
        ),
        pytest.param(
            "p := data.q & data.r | {1}\n",
            {
                ("rule dropped", 1, "", " if { false }"),
                *(("set operation swapped", 1, sign, other) for sign in "&|" for other in "&|-" if sign != other),
                ("element lost", 1, "{1}", "set()"),
                *number(1, 1),
            },
            id="set operations",
        ),
        pytest.param(
            "p if {\n\tevery x in input.xs { x in input.ys }\n}\n",
            {
                ("rule dropped", 2, "", "false\n\t"),
                ("condition dropped", 2, EVERY, "true"),
                ("quantifier swapped", 2, EVERY, "count([1 | some x in input.xs; x in input.ys]) > 0"),
                *condition(2, "x in input.ys"),
            },
            id="every",
        ),
        pytest.param(
            "p if {\n\tsome x in input.xs\n\tx in input.ys\n}\n",
            {
                ("rule dropped", 2, "", "false\n\t"),
                ("quantifier swapped", 2, "some x in input.xs\n\tx in input.ys", EVERY),
                *condition(3, "x in input.ys"),
            },
            id="some",
        ),
        pytest.param(
            "p contains x if {\n\tsome x in input.xs\n\ty := x\n\tf(y)\n}\n\nf(_)\n",
            {
                ("rule dropped", 2, "", "false\n\t"),
                *condition(4, "f(y)"),
                ("rule dropped", 7, "", " if { false }"),
            },
            id="variables that something else needs are not taken away",
        ),
        pytest.param(
            "default p := false\n\ndefault q := null\n\ndefault r := [1]\n",
            {
                ("rule dropped", 1, "default p := false", ""),
                ("default changed", 1, "false", "true"),
                ("rule dropped", 3, "default q := null", ""),
                ("default changed", 3, "null", "false"),
                ("rule dropped", 5, "default r := [1]", ""),
                ("default changed", 5, "[1]", "[]"),
                ("default changed", 5, "1", "2"),
                ("default changed", 5, "1", "0"),
            },
            id="defaults",
        ),
        pytest.param(
            'deny contains {"on": "DENY"} if input.a\n',
            {
                ("verdict swapped", 1, "deny", "step_up"),
                ("rule dropped", 1, "input.a", "{ false; input.a }"),
                *condition(1, "input.a"),
                ("element lost", 1, '{"on": "DENY"}', "{}"),
                ("verdict swapped", 1, '"DENY"', '"ALLOW"'),
                ("verdict swapped", 1, '"DENY"', '"STEP_UP"'),
            },
            id="verdicts",
        ),
        pytest.param(
            "step_up contains x if x := input.a\n\nallow contains x if x := input.a\n",
            {
                ("verdict swapped", 1, "step_up", "deny"),
                ("verdict swapped", 1, "step_up", "allow"),
                ("rule dropped", 1, "x := input.a", "{ false; x := input.a }"),
                ("verdict swapped", 3, "allow", "step_up"),
                ("rule dropped", 3, "x := input.a", "{ false; x := input.a }"),
            },
            id="what a concern finds weighs more or less",
        ),
        pytest.param(
            "p := input.z if input.a\n\nelse := input.y if not input.b\n\nelse := input.x\n",
            {
                ("rule dropped", 1, "input.a", "{ false; input.a }"),
                *condition(1, "input.a"),
                ("rule dropped", 3, "not input.b", "{ false; not input.b }"),
                ("condition dropped", 3, "not input.b", "true"),
                ("condition negated", 3, "not input.b", "input.b"),
                ("rule dropped", 5, "", " if { false }"),
            },
            id="else, of which OPA says only where it begins",
        ),
        pytest.param(
            "p if input.a[3] == `é`\n",
            {
                ("rule dropped", 1, "input.a[3] == `é`", "{ false; input.a[3] == `é` }"),
                *condition(1, "input.a[3] == `é`"),
                ("comparison moved", 1, "==", "!="),
                *number(1, 3),
                ("constant moved", 1, "`é`", "`é~`"),
            },
            id="columns are counted in characters",
        ),
        pytest.param(
            "# METADATA\n# title: T\n# description: D 1\n# custom:\n#   code: small.x\n"
            'deny contains data.authz.lib.reason.new(rego.metadata.rule(), {"limit": 5}) if input.a\n',
            {
                ("verdict swapped", 6, "deny", "step_up"),
                ("rule dropped", 6, "input.a", "{ false; input.a }"),
                *condition(6, "input.a"),
            },
            id="METADATA and the details of reasons are left alone",
        ),
    ],
)
def test_a_module_is_broken_in_each_place_that_it_has(
    opa: Path, text: str, expected: set[tuple[str, int, str, str]]
) -> None:
    assert {edit for edit in found(opa, text) if edit[0] not in WEAKENED} == expected


def near(a: str, b: str) -> set[str]:
    """The forms of two texts that are nearly equal."""
    return {
        f"startswith({a}, {b})", f"startswith({b}, {a})", f"endswith({a}, {b})", f"endswith({b}, {a})",
        f"contains({a}, {b})", f"contains({b}, {a})", f"startswith({b}, substring({a}, 0, floor(count({a}) / 2)))",
        f"lower({a}) == lower({b})", f"trim_space({a}) == trim_space({b})",
    }  # fmt: skip


def among(a: str, b: str) -> set[str]:
    """The forms of a text that is nearly a member."""
    return {f"count([1 | some near in {b}; {form}]) > 0" for form in near(a, "near")}


def bounded(a: str) -> set[tuple[str, str, str]]:
    texts = (f"min([{a}, 3])", f"min([{a}, 10000])", f"max([{a}, 1])", f"max([{a}, 100])")
    return {("number bounded", a, text) for text in texts}


def rounded(a: str) -> set[tuple[str, str, str]]:
    return {("number rounded", a, f"{function}({a})") for function in ("floor", "ceil", "round")}


def shifted(a: str) -> set[tuple[str, str, str]]:
    return {("number shifted", a, f"{a} {sign} 0.001") for sign in "+-"}


def first(domain: str) -> tuple[str, str, str]:
    return ("first element only", domain, f"array.slice([member | some member in {domain}], 0, 1)")


def equal(before: str, texts: set[str]) -> set[tuple[str, str, str]]:
    return {("equality weakened", before, text) for text in texts}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "f(a, b) if { a == b }\n",
            equal("a == b", near("a", "b") | {"abs(a - b) < 0.001"}),
            id="an equality of what may be texts or numbers",
        ),
        pytest.param(
            "f(a, b) if { a != b }\n",
            equal("a != b", {f"not {form}" for form in near("a", "b")} | {"abs(a - b) >= 0.001"}),
            id="an inequality",
        ),
        pytest.param('p if not input.a == "x"\n', equal('input.a == "x"', near("input.a", '"x"')), id="behind `not`"),
        pytest.param(
            'p if input.a != ""\n',
            equal('input.a != ""', {'not trim_space(input.a) == trim_space("")'}),
            id="an empty text, which is a part of every other one",
        ),
        pytest.param(
            "p if { input.a == true; input.b == null; input.c == 3; count(input.d) == 1; input.e == {1} }\n",
            set(),
            id="constants and counts that are no texts",
        ),
        pytest.param(
            "p if not input.a in input.b\n",
            {("membership weakened", "input.a in input.b", text) for text in among("input.a", "input.b")},
            id="a membership",
        ),
        pytest.param("p if { input.a in input.b with input.b as [1] }\n", set(), id="not a condition with `with`"),
        pytest.param(
            'p if startswith(input.a, "b.")\n',
            {
                ("text test weakened", 'startswith(input.a, "b.")', 'contains(input.a, "b.")'),
                ("text test weakened", 'startswith(input.a, "b.")', 'startswith(lower(input.a), lower("b."))'),
            },
            id="the beginning of a text",
        ),
        pytest.param(
            "p if count(input.a - data.b) == 0\n",
            {
                ("set difference weakened", "count(input.a - data.b) == 0", "count(input.a & data.b) > 0"),
                (
                    "set difference weakened",
                    "input.a - data.b",
                    "{lower(member) | some member in input.a} - {lower(member) | some member in data.b}",
                ),
            },
            id="nothing is missing",
        ),
        pytest.param(
            "f(a, b) if { a <= b }\n",
            {
                *bounded("a"),
                *bounded("b"),
                *rounded("a"),
                *rounded("b"),
                *shifted("b"),
                ("compared by day", "a <= b", "substring(a, 0, 10) <= substring(b, 0, 10)"),
            },
            id="an order, of numbers or of times",
        ),
        pytest.param(
            "p if data.authz.lib.number.at_most(50, input.a)\n",
            {
                ("number rounded", "input.a", "round(input.a)"),
                ("number shifted", "50", "50.001"),
                ("number shifted", "50", "49.999"),
            },
            id="a number and a constant",
        ),
        pytest.param(
            "p if input.a <= count(input.b)\n",
            {*bounded("input.a"), *bounded("count(input.b)"), *rounded("input.a"), *shifted("input.a")},
            id="a count, which is whole",
        ),
        pytest.param("p if count(input.b) > 2\n", set(), id="a count and a constant, of which each step is known"),
        pytest.param(
            "p if {\n\tsome x in input.xs\n\tevery y in (x - data.z) { y }\n}\n",
            {
                first("input.xs"),
                first("(x - data.z)"),
                (
                    "set difference weakened",
                    "(x - data.z)",
                    "{lower(member) | some member in x} - {lower(member) | some member in data.z}",
                ),
            },
            id="what is looked at one by one",
        ),
        pytest.param(
            "p if data.a[input.b].c[data.d]\n",
            {("key weakened", "input.b", "lower(input.b)"), ("key weakened", "input.b", "trim_space(input.b)")},
            id="an attribute by which something is looked up",
        ),
    ],
)
def test_a_condition_is_weakened_in_each_form_that_it_can_have(
    opa: Path, text: str, expected: set[tuple[str, str, str]]
) -> None:
    assert {(kind, before, after) for kind, _, before, after in found(opa, text) if kind in WEAKENED} == expected


def of_concern(opa: Path, file: Path, text: str) -> list[RegoMutant]:
    """The mutants of a concern of which a decision asks for everything."""
    decision = Module(
        file.with_name("decision.rego"), "package authz\n\ndecision := data.custom.concerns", custom=False
    )
    modules = {
        "authz/decision.rego": decision,
        "custom/concerns/small/small.rego": Module(file, text, custom=True),
    }
    return [each for each in rego_mutants(opa, modules) if each.module.startswith("custom/")]


def test_an_edited_module_is_what_its_diff_says_and_parses(opa: Path, tmp_path: Path) -> None:
    text = HEAD + "p if {\n\tinput.a > 1\n}\n\nelse := 3 if not input.b\n\nelse := {1, 2}\n"
    file = tmp_path / "here" / "small.rego"

    mutants = of_concern(opa, file, text)

    assert len({mutant.text for mutant in mutants}) == len(mutants) == len({mutant.id for mutant in mutants}) > 10
    for mutant in mutants:
        changed = Module(Path("mutant.rego"), mutant.text, custom=True)
        assert parse_modules(opa, {"mutant.rego": changed})["mutant.rego"]["rules"]
        removed = [line[1:] for line in mutant.diff.split("\n")[2:] if line.startswith("-")]
        added = [line[1:] for line in mutant.diff.split("\n")[2:] if line.startswith("+")]
        assert removed != added
        assert all(line in text.split("\n") for line in removed)
        assert all(line in mutant.text.split("\n") for line in added)
        assert mutant.place.file == str(file)


def test_an_identity_outlives_edits_elsewhere_in_the_file(opa: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.rego"
    rule = "p if {\n\tinput.a > 1\n\tinput.b > 1\n}\n"

    def identities(text: str) -> list[tuple[str, int]]:
        return [(each.id, each.place.line) for each in of_concern(opa, file, HEAD + text)]

    before, after = identities(rule), identities(f"# A remark.\nq := 5\n\n{rule}")

    assert {identity for identity, _ in before} < {identity for identity, _ in after}
    assert {line for _, line in before} == {4, 5}
    assert json.dumps(before[0]) == json.dumps(
        ["custom/concerns/small/small.rego:p:rule-dropped:" + before[0][0].rsplit(":", 1)[1], 4]
    )


def test_rules_that_a_decision_does_not_ask_for_are_known(opa: Path, tmp_path: Path) -> None:
    texts = {
        "authz/decision.rego": (
            "package authz\n\nimport data.authz.lib.used as lib\nimport data.authz.other\n\n"
            "decision := _own if lib.yes\n\n_own contains x if some x in data.authz.concerns[_].deny\n\n"
            "plan := other.deny\n\n_alone := 1\n"
        ),
        "authz/lib/used/used.rego": "package authz.lib.used\n\nyes if _deeper == 1\n\n_deeper := 1\n\nno := 2\n",
        "authz/concerns/a/a.rego": (
            "package authz.concerns.a\n\ndeny contains 1 if not data.authz.lib.used.no\n\nidle := 1\n"
        ),
        "authz/other/other.rego": "package authz.other\n\ndeny contains 2 if _inner\n\n_inner := 3\n",
    }
    modules = {path: Module(tmp_path / path, text, custom=False) for path, text in texts.items()}

    assert {(each.package, each.owner) for each in rego_mutants(opa, modules)} == {
        ("authz", "decision"), ("authz", "_own"), ("authz.lib.used", "yes"), ("authz.lib.used", "_deeper"),
        ("authz.lib.used", "no"), ("authz.concerns.a", "deny"), ("authz.concerns.a", "idle"),
    }  # fmt: skip


def test_what_a_tool_writes_is_weakened_and_sources_are_dropped_once(tmp_path: Path) -> None:
    """Dropping `required` of an argument that names sources changes no decision: provenance requires it as well."""
    text = {"type": "string", "maxLength": 9}
    schema = {"type": "object", "required": ["source", "text"], "properties": {"source": text, "text": text}}
    tool = {"effect_class": "stage", "scopes": ["notes"], "schema": schema}
    tools = [
        {"name": "file_note", "writes": "proposal", "provenance": {"required": ["source"]}, **tool},
        {"name": "write_note", "writes": "canonical", **tool},
    ]
    (tmp_path / "m.json").write_text(json.dumps({"manifest_version": "1", "tools": tools}))
    call = {"tool": "file_note", "arguments": {"source": "a", "text": "b"}}
    scenario = {"name": "one", "session": {"claims": {"sub": "ann"}}, "propose": call, "expect": {"verdict": "DENY"}}
    (tmp_path / "s.scenarios.yaml").write_text(json.dumps({"manifest": "m.json", "scenarios": [scenario]}))

    mutants = manifest_mutants(load_suite(tmp_path / "s.scenarios.yaml"))
    kinds = Counter((mutant.tool, mutant.kind) for mutant in mutants)
    assert kinds["write_note", "canonical writes allowed"] == kinds["file_note", "provenance dropped"] == 1
    assert kinds["write_note", "schema loosened"] - kinds["file_note", "schema loosened"] == 1
