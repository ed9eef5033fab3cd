# METADATA
# title: Tested
# description: Every concern has unit tests, in a package with its name and `_test` that reads the concern.
package checks.rules.tested

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Concerns without unit tests.
findings contains modules.finding(
	file,
	concern.tree["package"],
	$"the concern {concern["package"]} has no unit tests",
	$"write `package {concern["package"]}_test` beside it, with `import data.{concern["package"]}` and rules named `test_…`",
) if {
	is_array(input.tests)
	some file, concern in modules.firsts
	not _tested(concern["package"])
}

_tested(concern) if {
	some test in input.tests
	concat(".", modules.package_path(test.tree)) == $"{concern}_test"
	some rule in test.tree.rules
	startswith(modules.name(rule), "test_")
	walk(test.tree, [_, node])
	node.type == "ref"
	startswith($"{concat(".", [$"{part.value}" | some part in node.value])}.", $"data.{concern}.")
}
