package checks.rules.negated_calls_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.negated_calls

# What is named where something may be absent; an empty set where it cannot be.
_cases := {
	"membership": {"not": "x in input.resource.properties.markings", "absent": {"input.resource.properties.markings"}},
	"an argument of a builtin": {"not": "startswith(input.context.a, x)", "absent": {"input.context.a"}},
	"an argument of a function": {"not": "_f(data.settings.a)", "absent": {"data.settings.a"}},
	"two of them": {"not": "_f(input.context.a, input.context.b)", "absent": {"input.context.a", "input.context.b"}},
	"deep in an argument": {"not": "_f([{\"a\": lower(input.context.a)}])", "absent": {"input.context.a"}},
	"an index": {"not": "x.y[input.context.a]", "absent": {"input.context.a"}},
	"an operand's index": {"not": "input.context.b[input.context.a] == x", "absent": {"input.context.a"}},
	"within an operand": {"not": "x == {\"a\": input.context.a}", "absent": {"input.context.a"}},
	"inequality": {"not": "input.context.a != x", "absent": {"input.context.a"}},
	"through an import": {"not": "x in manifest.entry.markings", "absent": {"manifest.entry.markings"}},
	"a library's document, spelled out": {
		"not": "x in data.authz.lib.manifest.entry.markings",
		"absent": {"data.authz.lib.manifest.entry.markings"},
	},
	"a name that is put in": {"not": "x in input.context[y]", "absent": {"input.context[y]"}},
	"a reference": {"not": "input.context.a.b", "absent": set()},
	"an operand": {"not": "input.context.a == x", "absent": set()},
	"operands on both sides": {"not": "input.context.a == input.context.b", "absent": set()},
	"what every request has": {"not": "_f(input.action.name, input.resource.type, input.context)", "absent": set()},
	"a library's set": {"not": "x in limits.exceeded", "absent": set()},
	"a library's function": {"not": "number.at_most(x, y)", "absent": set()},
	"a call in an argument": {"not": "number.at_most(data.authz.lib.a.f(x), y)", "absent": set()},
	"all settings": {"not": "x in data.settings", "absent": set()},
	"local variables": {"not": "x.a in y.b", "absent": set()},
	"in a comprehension": {"not": "_f([y | y := input.context.a])", "absent": set()},
	"in a template": {"not": `$"{input.context.a}" == x`, "absent": set()},
}

_imports := concat("\n", [$"import data.authz.lib.{name}" | some name in ["limits", "manifest", "number"]])

test_negated_calls[name] if {
	some name, case in _cases
	rules := concat("", [_imports, "\n\ndeny contains r if not ", case["not"]])
	found := negated_calls.findings with input as fixture.checked([fixture.concern(rules, [])])

	fixture.messages(found) == {message |
		some reference in case.absent
		message := $"where `{reference}` is absent, this `not` is undefined, and the rule says nothing"
	}
}

test_what_is_not_negated_may_be_absent if {
	rules := "deny contains r if x in input.context.a"
	negated_calls.findings == set() with input as fixture.checked([fixture.concern(rules, [])])
}

test_in_a_comprehension_of_a_rule if {
	rules := "deny contains r if r := [x | some x in y; not x in input.context.a]"
	found := negated_calls.findings with input as fixture.checked([fixture.concern(rules, [])])

	count(found) == 1
}

test_in_a_library if {
	library := fixture.module("authz/lib/a/a.rego", "package authz.lib.a\n\nopen if not x in input.context.a", [])
	{[found.file, found.message] | some found in negated_calls.findings} == {[
		"authz/lib/a/a.rego",
		"where `input.context.a` is absent, this `not` is undefined, and the rule says nothing",
	]} with input as fixture.checked([library])
}
