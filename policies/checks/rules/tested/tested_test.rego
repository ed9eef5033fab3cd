package checks.rules.tested_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.tested

_missing := {{
	"file": fixture.file,
	"line": 1,
	"column": 1,
	"message": "the concern custom.concerns.c has no unit tests",
	"hint": concat("", [
		"write `package custom.concerns.c_test` beside it, with `import data.custom.concerns.c`",
		" and rules named `test_…`",
	]),
}}

_cases := {
	"imported": {
		"tests": ["package custom.concerns.c_test\n\nimport data.custom.concerns.c\n\ntest_a if c.deny == set()"],
		"found": set(),
	},
	"spelled out": {
		"tests": ["package custom.concerns.c_test\n\ntest_a if data.custom.concerns.c.deny == set()"],
		"found": set(),
	},
	"none": {"tests": [], "found": _missing},
	"nothing that is run": {
		"tests": ["package custom.concerns.c_test\n\nimport data.custom.concerns.c\n\nx := c"],
		"found": _missing,
	},
	"of something else": {
		"tests": ["package custom.concerns.c_test\n\nimport data.custom.concerns.cc\n\ntest_a if cc.deny == set()"],
		"found": _missing,
	},
	"of another package": {
		"tests": ["package custom.concerns.d_test\n\nimport data.custom.concerns.c\n\ntest_a if c.deny == set()"],
		"found": _missing,
	},
}

test_tested[name] if {
	some name, case in _cases
	trees := [{"tree": rego.parse_module("t.rego", text)} | some text in case.tests]
	found := tested.findings with input as object.union(
		fixture.checked([fixture.concern("deny contains 1", [])]),
		{"tests": trees},
	)

	found == case.found
}

test_nobody_asks if {
	tested.findings == set() with input as fixture.checked([fixture.concern("deny contains 1", [])])
}
