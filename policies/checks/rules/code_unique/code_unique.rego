# METADATA
# title: Codes are unique
# description: |
#   A code belongs to one rule body only, so that a log, an explanation or a test shows which rule fired. Alternatives of
#   one finding belong in a helper rule.
package checks.rules.code_unique

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Every rule but the first that states a code.
findings contains modules.finding(
	use.file,
	use.head,
	$"the code `{code}` is already used by the rule at {first.source}:{object.get(first.head, ["location", "row"], 1)}",
	"use another code, or put the alternatives of one finding into a helper rule",
) if {
	some code, uses in _uses
	first := uses[0]
	some use in array.slice(uses, 1, count(uses))
}

# The uses are in the order of files, and of rules in a file.
_uses[code] := [{"file": file, "source": modules.reasoned[file].source, "head": rule.head} |
	some file, rules in modules.reporting
	some rule in rules
	modules.code(rule) == code
] if {
	some rules in modules.reporting
	some rule in rules
	code := modules.code(rule)
}
