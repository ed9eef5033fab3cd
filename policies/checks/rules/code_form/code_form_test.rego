package checks.rules.code_form_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.code_form

test_of_the_form[code] if {
	some code in ["c.a", "c.not_allowed", "c.a1"]
	code_form.findings == set() with input as fixture.checked([fixture.concern("deny contains x", [fixture.annotation(code)])])
}

test_of_another_form[code] if {
	some code in ["c", "c.", "c.a.b", "d.a", "c.A", "C.a", "c.1", "c.a-b", "c.a b", ".a", "c. a", "ca.a"]
	found := code_form.findings with input as fixture.checked([fixture.concern("deny contains x", [fixture.annotation(code)])])

	fixture.messages(found) == {$"the code `{code}` is not `c.<finding>` in small letters, digits and `_`"}
}

# Another check reports a missing code.
test_none[name] if {
	some name, annotations in {"no METADATA": [], "no code": [{"title": "T"}], "empty": [fixture.annotation("")]}
	code_form.findings == set() with input as fixture.checked([fixture.concern("deny contains x", annotations)])
}

test_the_decisions_own[code] if {
	some code, wrong in {"decision.a": false, "c.a": true}
	text := "package authz\n\n_a := reason.new(rego.metadata.rule(), {})"
	found := code_form.findings with input as fixture.checked([fixture.module("d.rego", text, [fixture.annotation(code)])])

	fixture.messages(found) == {$"the code `{code}` is not `decision.<finding>` in small letters, digits and `_`" | wrong}
}
