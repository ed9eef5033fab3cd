# METADATA
# title: Names of builtins
# description: |
#   A rule or an import with the name of a builtin replaces the builtin in the whole package. With a function `gt`, `a > b`
#   calls that function; with a rule `is_string`, guards no longer check the type.
package checks.rules.builtin_names

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Rules and imports of concerns that have the name of a builtin.
findings contains modules.finding(file, node, message, "give it another name") if {
	some file, concern in modules.concerns
	some [name, node] in array.concat(
		[[modules.name(rule), rule.head] | some rule in concern.tree.rules],
		[[modules.alias(imported), imported] | some imported in object.get(concern.tree, "imports", [])],
	)
	name in _names
	message := $"`{name}` is the name of a builtin, which this would replace in the whole package"
}

# The first part of a name like `object.get`, since a rule named `object` hides all of them.
_names contains split(builtin, ".")[0] if some builtin, _ in input.builtins
