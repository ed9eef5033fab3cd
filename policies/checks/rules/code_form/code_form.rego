# METADATA
# title: Form of codes
# description: |
#   A code is `<concern>.<finding>`, both in small letters, digits and `_`. The decision treats a reason with the code of
#   another concern as malformed.
package checks.rules.code_form

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Rules whose code does not have this form, or belongs to another concern.
findings contains modules.finding(
	file,
	rule.head,
	$"the code `{code}` is not `{concern}.<finding>` in small letters, digits and `_`",
	"a code begins with the name of its concern, and is never renamed once it was released",
) if {
	some file, rules in modules.reporting
	concern := modules.reasoned[file].name
	some rule in rules
	code := modules.code(rule)
	trim_space(code) != ""
	not _well_formed(code, concern)
}

_well_formed(code, concern) if {
	parts := split(code, ".")
	count(parts) == 2
	parts[0] == concern
	regex.match(`^[a-z][a-z0-9_]*$`, parts[1])
}
