package checks.rules.reason_form_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.reason_form

_reasons := {
	"built": {"element": "reason.new(rego.metadata.rule(), {})", "found": set()},
	"written out": {"element": `{"code": "c.a", "message": "", "details": {}}`, "found": set()},
	"with a remedy": {"element": `{"code": "c.a", "message": "", "details": {}, "remedy": ""}`, "found": set()},
	"a code that is worked out": {"element": `{"code": x, "message": "", "details": {}}`, "found": set()},
	"a variable": {"element": "x", "found": set()},
	"another code": {
		"element": `{"code": "c.b", "message": "", "details": {}}`,
		"found": {"the reason's code is not `c.a`, which the rule's METADATA states"},
	},
	"other keys": {
		"element": `{"code": "c.a", "message": ""}`,
		"found": {"a reason has exactly the keys code, details, message"},
	},
}

test_reasons[name] if {
	some part in ["deny", "step_up", "allow"]
	some case_name, case in _reasons
	name := $"{part}: {case_name}"
	rule := $"{part} contains {case.element} if y"
	found := reason_form.findings with input as fixture.checked([fixture.concern(rule, [fixture.annotation("c.a")])])

	fixture.messages(found) == case.found
}

_obligations := {
	"written out": {"element": `{"id": "a", "on": "ALLOW", "parameters": {}}`, "found": set()},
	"with what is worked out": {"element": `{"id": x, "on": y, "parameters": z}`, "found": set()},
	"another verdict": {
		"element": `{"id": "a", "on": "allow", "parameters": {}}`,
		"found": {"an obligation is `on` ALLOW, DENY or STEP_UP"},
	},
	"other keys": {
		"element": `{"id": "a", "on": "ALLOW"}`,
		"found": {"an obligation has exactly the keys id, on, parameters"},
	},
	"a text": {"element": `"redact"`, "found": {"an element of `obligations` must be an obligation"}},
}

test_obligations[name] if {
	some name, case in _obligations
	rule := $"obligations contains {case.element} if y"
	found := reason_form.findings with input as fixture.checked([fixture.concern(rule, [])])

	fixture.messages(found) == case.found
	every finding in found {
		finding.hint == "write `obligations contains {\"id\": …, \"on\": \"ALLOW\", \"parameters\": {…}} if { … }`"
	}
}

test_what_can_be_no_reason[element] if {
	some element in ["1", `"c.a"`, "true", "null", "[x]", "{x}", "[y | y := x]", "{y | y := x}", "{y: 1 | y := x}", `$"{x}"`]
	found := reason_form.findings with input as fixture.checked([fixture.concern($"deny contains {element} if z", [])])

	fixture.messages(found) == {"an element of `deny` must be a reason"}
}

test_other_rules_hold_what_they_like if {
	reason_form.findings == set() with input as fixture.checked([fixture.concern("_names contains 1 if x", [])])
}
