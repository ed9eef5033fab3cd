package checks.rules.builtin_names_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.builtin_names

_replaced(name) := {$"`{name}` is the name of a builtin, which this would replace in the whole package"}

_cases := {
	"other names": {"rules": "import data.authz.lib.number\n\n_gt(x) := x\n\nlimits := 1", "found": set()},
	"an operator": {"rules": "gt(a, b) if a == b", "found": _replaced("gt")},
	"a guard": {"rules": "is_string(x) if x", "found": _replaced("is_string")},
	"the first part of a builtin": {"rules": "object := 1", "found": _replaced("object")},
	"an import": {"rules": "import data.authz.lib.count\n\nx := 1", "found": _replaced("count")},
	"an import's alias": {"rules": "import data.authz.lib.number.at_most as lt\n\nx := 1", "found": _replaced("lt")},
	"an import behind an alias": {"rules": "import data.authz.lib.count as number\n\nx := 1", "found": set()},
}

test_builtin_names[name] if {
	some name, case in _cases
	found := builtin_names.findings with input as fixture.checked([fixture.concern(case.rules, [])])

	fixture.messages(found) == case.found
}
