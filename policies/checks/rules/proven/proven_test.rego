package checks.rules.proven_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.proven

_missing := {{
	"file": fixture.file,
	"line": 1,
	"column": 1,
	"message": "no scenario expects a code of the concern custom.concerns.c",
	"hint": "write one with `expect: {verdict: …, codes: [c.…]}`",
}}

_cases := {
	"one code": {"codes": ["a.b", "c.a"], "found": set()},
	"none of it": {"codes": ["a.c", "cc.a", "c"], "found": _missing},
	"none": {"codes": [], "found": _missing},
	"nobody asks": {"codes": null, "found": set()},
}

test_proven[name] if {
	some name, case in _cases
	found := proven.findings with input as object.union(
		fixture.checked([fixture.concern("deny contains 1", [])]),
		{"scenario_codes": case.codes},
	)

	found == case.found
}
