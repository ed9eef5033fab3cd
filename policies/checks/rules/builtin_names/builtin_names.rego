# METADATA
# title: Names of builtins
# description: |
#   A rule or an import named like a builtin takes its place in the whole package: with a function `gt`, `a > b` calls that,
#   and with one named `is_string` no guard can be believed.
package checks.rules.builtin_names

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Rules and imports of concerns that are named like a builtin.
findings contains modules.finding(file, node, message, "give it another name") if {
	some file, concern in modules.concerns
	some [name, node] in array.concat(
		[[modules.name(rule), rule.head] | some rule in concern.tree.rules],
		[[modules.alias(imported), imported] | some imported in object.get(concern.tree, "imports", [])],
	)
	name in _names
	message := $"`{name}` is the name of a builtin, which this would replace in the whole package"
}

# Of `object.get` the first part: a rule of that name hides all of them.
_names contains split(builtin, ".")[0] if some builtin, _ in input.builtins
