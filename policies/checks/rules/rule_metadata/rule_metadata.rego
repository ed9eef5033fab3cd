# METADATA
# title: Metadata of rules
# description: |
#   Every rule with findings has METADATA: a title, a description, which is the message of the reason, and a code. Further
#   bodies of a rule, and alternatives with one name, count as separate rules. A rule may state a remedy. Its length is
#   limited, because a model reads it too.
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
	not _passes_on(file, rule)
	missing := [field |
		some field in ["title", "description", "custom.code"]
		not _states(rule, field)
	]
	count(missing) > 0
}

findings contains modules.finding(
	file,
	rule.head,
	$"`{modules.name(rule)}` has a `custom.remedy` in its METADATA that is not a text of 1 to {_longest} characters",
	"write one sentence that says how to get the call allowed, or remove `remedy`",
) if {
	some file, rules in modules.reporting
	some rule in rules
	remedy := modules.annotations(rule).custom.remedy
	not _short(remedy)
}

# A finding that is passed on from another rule of the module is described by the METADATA of that rule.
_passes_on(file, rule) if {
	some expression in rule.body
	is_object(expression.terms)
	some symbol in expression.terms.symbols
	[_, element, set] := symbol.value
	[element.type, element.value] == [rule.head.key.type, rule.head.key.value]
	set.value in _describing[file]
}

# By file, the names of rules whose bodies all build reasons from their own METADATA.
_describing[file] := {modules.name(rule) | some rule in rules} - others if {
	some file, rules in modules.reporting
	others := {modules.name(rule) | some rule in modules.reasoned[file].tree.rules; not rule in rules}
}

_longest := 300

_short(text) if {
	is_string(text)
	trim_space(text) != ""
	count(text) <= _longest
}

_states(rule, field) if {
	stated := object.get(modules.annotations(rule), split(field, "."), null)
	is_string(stated)
	trim_space(stated) != ""
}
