package checks_test

import data.checks
import data.checks.lib.fixture_test as fixture

test_a_finding_has_its_check_and_place if {
	tree := object.union(
		fixture.concern("deny contains 1", [fixture.annotation("c.a")]).tree,
		{"annotations": [{"scope": "package", "title": "T", "description": "D"}]},
	)
	placed := json.patch(tree, [{"op": "add", "path": "/rules/0/head/key/location", "value": {"row": 7, "col": 3}}])
	found := checks.findings with input as fixture.checked([{"file": "f.rego", "source": "my/f.rego", "tree": placed}])

	found == {{
		"check": "reason_form",
		"file": "f.rego",
		"line": 7,
		"column": 3,
		"message": "an element of `deny` must be a reason",
		"hint": concat("", [
			"write `deny contains reason.new(rego.metadata.rule(), {…}) if { … }`,",
			" with `import data.authz.lib.reason`",
		]),
	}}
}

test_nothing_to_check if checks.findings == set() with input as fixture.checked([])
