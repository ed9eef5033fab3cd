package checks.rules.comparisons_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.comparisons

_may_be_none(sign, shown) := {$"`{sign}` compares values of any type: `{shown}` may not be a number"}

_cases := {
	"a count with a number": {"body": "count(x) > 0", "found": set()},
	"counts": {"body": "count(x) < count(y)", "found": set()},
	"equality": {"body": "input.context.a == 1", "found": set()},
	"an attribute": {"body": "input.context.amount > 5", "found": _may_be_none(">", "input.context.amount")},
	"an attribute on the right": {"body": "5 < input.context.amount", "found": _may_be_none("<", "input.context.amount")},
	"a variable": {"body": "x := input.context.a\n\tx > 1", "found": _may_be_none(">", "x")},
	"a guard": {"body": "is_number(input.a)\n\tinput.a > 1", "found": set()},
	"a guard behind": {"body": "input.a > 1\n\tis_number(input.a)", "found": _may_be_none(">", "input.a")},
	"a guard of another type": {"body": "is_string(input.a)\n\tinput.a > 1", "found": _may_be_none(">", "input.a")},
	"what is trusted elsewhere": {"body": "data.config.a > 1", "found": _may_be_none(">", "data.config.a")},
	"a text": {"body": `count(x) > "5"`, "found": _may_be_none(">", `"5"`)},
	"null": {"body": "count(x) > null", "found": _may_be_none(">", "null")},
	"a list": {"body": "count(x) > [1]", "found": _may_be_none(">", "a list")},
	"a comprehension": {"body": "count(x) > [y | y := 1]", "found": _may_be_none(">", "a comprehension")},
	"what a function gives": {"body": "_f(x) > 1", "found": _may_be_none(">", "_f(…)")},
	"what a builtin of any type gives": {"body": "max(x) > 1", "found": _may_be_none(">", "max(…)")},
	"in a comprehension": {"body": "y := [z | some z in x; z < 1]", "found": _may_be_none("<", "z")},
	"as a value": {"body": "y := input.a > 1", "found": _may_be_none(">", "input.a")},
	"an element of a list": {"body": "[input.a][0] > 1", "found": _may_be_none(">", "(…)[0]")},
	"of both sides": {"body": "x.a > y.b", "found": (_may_be_none(">", "x.a") | _may_be_none(">", "y.b"))},
	"names that are no identifiers": {"body": `x["a b"][i][0][y.z] > 1`, "found": _may_be_none(">", `x["a b"][i][0][…]`)},
}

test_comparisons[name] if {
	some name, case in _cases
	found := comparisons.findings with input as fixture.checked([fixture.concern(concat(case.body, ["deny contains r if {\n\t", "\n}"]), [])])

	fixture.messages(found) == case.found
}

test_libraries_may_compare if {
	module := fixture.module("authz/lib/a/a.rego", "package authz.lib.a\n\nx if input.a > 1", [])
	comparisons.findings == set() with input as fixture.checked([module])
}
