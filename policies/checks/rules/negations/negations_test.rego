package checks.rules.negations_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.negations

_without := {"`not` without `import rego.v2`: the rule does not fire if an attribute in it is absent"}

_body := {"a body in braces after `not` can end the loop around it too early in WebAssembly"}

_cases := {
	"no negation": {"rules": "deny contains r if input.a", "found": set()},
	"without the import": {"rules": "deny contains r if not input.a", "found": _without},
	"with another import": {"rules": "import data.authz.lib.number\n\ndeny contains r if not input.a", "found": _without},
	"in a comprehension": {"rules": "deny contains r if r := [x | some x in y; not x in input.a]", "found": _without},
	"with the import": {"rules": "import rego.v2\n\ndeny contains r if not f(lower(input.a))", "found": set()},
	"alternatives": {"rules": "import rego.v2\n\ndeny contains r if not (input.a or input.b)", "found": set()},
	"a body": {"rules": "import rego.v2\n\ndeny contains r if not { some x in y; x == input.a }", "found": _body},
}

test_negations[name] if {
	some name, case in _cases
	found := negations.findings with input as fixture.checked([fixture.concern(case.rules, [])])
	fixture.messages(found) == case.found
}

test_libraries_are_asked_too if {
	library := fixture.module("authz/lib/a/a.rego", "package authz.lib.a\n\nopen if not x in input.context.a", [])
	{found.file | some found in negations.findings} == {"authz/lib/a/a.rego"} with input as fixture.checked([library])
}
