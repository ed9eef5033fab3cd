# METADATA
# title: Metadata of rules
# description: |
#   Every rule that finds something has METADATA of its own with a title, a description, which is the reason's message, and
#   a code. A rule's further bodies, and alternatives of one name, are rules of their own in this.
package checks.rules.rule_metadata

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Rules that lack a title, a description or a code.
findings contains modules.finding(
	file,
	rule.head,
	$"`{modules.name(rule)}` has no {concat(" and no ", missing)} in its METADATA",
	$"write a comment above it that begins with `# METADATA`, with title, description and custom.code: {concern}.<finding>",
) if {
	some file, rules in modules.reporting
	concern := modules.reasoned[file].name
	some rule in rules
	missing := [field |
		some field in ["title", "description", "custom.code"]
		not _states(rule, field)
	]
	count(missing) > 0
}

_states(rule, field) if {
	stated := object.get(modules.annotations(rule), split(field, "."), null)
	is_string(stated)
	trim_space(stated) != ""
}
