package checks.rules.mixed_members_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.mixed_members

_lost(shown) := {$"OPA 1.21.0 to 1.22.0 do not find `{shown}` here, beside a constant, so the rule never fires"}

_cases := {
	"an attribute in a set": {"body": `input.a in {"O-1", input.b}`, "found": _lost("input.b")},
	"in a list": {"body": `input.a in ["O-1", input.b]`, "found": _lost("input.b")},
	"in the values of an object": {"body": `input.a in {"k": "O-1", "l": input.b}`, "found": _lost("input.b")},
	"data": {"body": `input.a in {1, data.settings.b}`, "found": _lost("data.settings.b")},
	"a call": {"body": `input.a in {"O-1", lower(input.b)}`, "found": _lost("lower(…)")},
	"a variable on both sides": {"body": "x := input.a\n\ty := input.b\n\tx in {null, y}", "found": _lost("y")},
	"after else": {"body": "input.a == 1\n} else := r if {\n\tinput.a in {1, input.b}", "found": _lost("input.b")},
	"several": {"body": `input.a in {"O-1", input.b, input.c}`, "found": (_lost("input.b") | _lost("input.c"))},
	"constants": {"body": `input.a in {"O-1", "O-2"}`, "found": set()},
	"no constant": {"body": `input.a in {input.b, input.c}`, "found": set()},
	"keys of an object": {"body": `input.a in {input.b: "O-1"}`, "found": set()},
	"a collection with a name": {"body": "x := {1, input.b}\n\tinput.a in x", "found": set()},
	"under not": {"body": "not input.a in {1, input.b}", "found": set()},
	"in a comprehension": {"body": "count([1 | input.a in {1, input.b}]) > 0", "found": set()},
	"in every": {"body": "every x in input.a {\n\t\tx in {1, input.b}\n\t}", "found": set()},
	"as a value": {"body": "x := input.a in {1, input.b}", "found": set()},
	"with a key": {"body": `"k", input.a in {"k": input.b, "l": 1}`, "found": set()},
}

test_mixed_members[name] if {
	some name, case in _cases
	text := concat(case.body, ["r := 1 if {\n\t", "\n}"])
	module := fixture.module("authz/lib/a/a.rego", concat("\n\n", ["package authz.lib.a", text]), [])
	found := mixed_members.findings with input as fixture.checked([module])

	fixture.messages(found) == case.found
}
