package checks.rules.rule_metadata_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.rule_metadata

_cases := {
	"each part with all of it": {
		"rules": "deny contains x\n\nstep_up contains x\n\nallow contains x\n\nobligations contains x",
		"annotations": [fixture.annotation("c.a"), fixture.annotation("c.b"), fixture.annotation("c.c"), fixture.annotation("c.d")],
		"found": set(),
	},
	"each part without": {
		"rules": "deny contains x\n\nstep_up contains x\n\nallow contains x\n\nobligations contains x",
		"annotations": [],
		"found": {$"`{part}` has no title and no description and no custom.code in its METADATA" |
			some part in ["deny", "step_up", "allow", "obligations"]
		},
	},
	"a second body": {
		"rules": "deny contains x if y\n\ndeny contains x if z",
		"annotations": [fixture.annotation("c.a")],
		"found": {"`deny` has no title and no description and no custom.code in its METADATA"},
	},
	"fields that are empty or no text": {
		"rules": "deny contains x",
		"annotations": [{"title": " ", "description": "D", "custom": {"code": 1}}],
		"found": {"`deny` has no title and no custom.code in its METADATA"},
	},
	"remedies of up to 300 characters": {
		"rules": "deny contains x\n\ndeny contains y\n\nallow contains x",
		"annotations": [_remedied("Ask."), _remedied(_text(300)), _remedied("Ask the desk for it.")],
		"found": set(),
	},
	"a helper needs none": {"rules": "_y := 1", "annotations": [], "found": set()},
	"a helper that reads its own METADATA": {
		"rules": "_y := reason.new(rego.metadata.rule(), {})",
		"annotations": [{"title": "T"}],
		"found": {"`_y` has no description and no custom.code in its METADATA"},
	},
	"a finding of another rule is passed on": {
		"rules": concat("\n\n", [_found, "deny contains x if some x in _found", "step_up contains x if {\n\ty\n\tsome x in _found\n}"]),
		"annotations": [fixture.annotation("c.a")],
		"found": set(),
	},
	"a finding of a rule without METADATA is passed on": {
		"rules": concat("\n\n", [_found, "deny contains x if some x in _found"]),
		"annotations": [],
		"found": {"`_found` has no title and no description and no custom.code in its METADATA"},
	},
}

_found := "_found contains reason.new(rego.metadata.rule(), {}) if y"

# Findings that are passed on without a description.
_passed_on := {
	"of a rule that builds no reason": "_found contains x if some x in y\n\ndeny contains x if some x in _found",
	"of a rule that builds one, and another one": concat("\n\n", [_found, "_found contains 1 if z", "deny contains x if some x in _found"]),
	"of a variable": concat("\n\n", [_found, "deny contains x if {\n\ty := _found\n\tsome x in y\n}"]),
	"of another package": concat("\n\n", [_found, "deny contains x if some x in data.c._found"]),
	"of the request": concat("\n\n", [_found, "deny contains x if some x in input._found"]),
	"what is made of one": concat("\n\n", [_found, "deny contains [x] if some x in _found"]),
	"another one": concat("\n\n", [_found, "deny contains z if {\n\tsome x in _found\n\tz := x.z\n}"]),
	"its key": concat("\n\n", [_found, "deny contains x if some x, _ in _found"]),
	"what one is not": concat("\n\n", [_found, "deny contains x if not x in _found"]),
	"what has a part of it": concat("\n\n", [_found, "deny contains \"x\" if some x in _found"]),
}

test_passed_on_and_not_described[name] if {
	some name, rules in _passed_on
	found := rule_metadata.findings with input as fixture.checked([fixture.concern(rules, [fixture.annotation("c.a")])])

	"`deny` has no title and no description and no custom.code in its METADATA" in fixture.messages(found)
}

_remedied(remedy) := object.union(fixture.annotation("c.a"), {"custom": {"remedy": remedy}})

_text(length) := concat("", ["x" | some _ in numbers.range(1, length)])

test_a_remedy_that_is_none[name] if {
	some remedy in ["", " ", 1, null, {"en": "Ask."}, ["Ask."], _text(301)]
	name := json.marshal(remedy)
	found := rule_metadata.findings with input as fixture.checked([fixture.concern("deny contains x", [_remedied(remedy)])])
	text := "`deny` has a `custom.remedy` in its METADATA that is not a text of 1 to 300 characters"

	fixture.messages(found) == {text}
}

test_rule_metadata[name] if {
	some name, case in _cases
	found := rule_metadata.findings with input as fixture.checked([fixture.concern(case.rules, case.annotations)])

	fixture.messages(found) == case.found
}

test_the_decision if {
	text := "package authz\n\n_a := reason.new(rego.metadata.rule(), {})\n\ndeny contains 1"
	found := rule_metadata.findings with input as fixture.checked([fixture.module("authz/decision.rego", text, [])])

	found == {{
		"file": "authz/decision.rego",
		"line": 1,
		"column": 1,
		"message": "`_a` has no title and no description and no custom.code in its METADATA",
		"hint": concat("", [
			"write a comment above it that begins with `# METADATA`, with title, description and custom.code:",
			" decision.<finding>",
		]),
	}}
}
