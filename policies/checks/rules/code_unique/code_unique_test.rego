package checks.rules.code_unique_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.code_unique

_hint := "use another code, or put the alternatives of one finding into a helper rule"

test_each_its_own if {
	rules := "deny contains x if y\n\ndeny contains x if z\n\n_a := 1"
	annotations := [fixture.annotation("c.a"), fixture.annotation("c.b"), fixture.annotation("c.a")]
	code_unique.findings == set() with input as fixture.checked([fixture.concern(rules, annotations)])
}

test_two_bodies_of_a_rule if {
	rules := "deny contains x if y\n\ndeny contains x if z"
	annotations := [fixture.annotation("c.a"), fixture.annotation("c.a")]
	found := code_unique.findings with input as fixture.checked([fixture.concern(rules, annotations)])

	found == {{
		"file": fixture.file,
		"line": 1,
		"column": 1,
		"message": "the code `c.a` is already used by the rule at my/custom/concerns/c/c.rego:1",
		"hint": _hint,
	}}
}

test_two_files if {
	modules := [fixture.module(file, "package custom.concerns.c\n\ndeny contains x", [fixture.annotation("c.a")]) |
		some file in ["b.rego", "a.rego"]
	]
	found := code_unique.findings with input as fixture.checked(modules)

	found == {{
		"file": "b.rego",
		"line": 1,
		"column": 1,
		"message": "the code `c.a` is already used by the rule at my/a.rego:1",
		"hint": _hint,
	}}
}
