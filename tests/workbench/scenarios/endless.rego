# METADATA
# title: Endless
# description: Evaluates more than the deadline allows.
package custom.concerns.endless

import data.authz.lib.reason

# METADATA
# title: Never
# description: The evaluation never ends.
# custom:
#   code: endless.never
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "read_note"
	input.context.arguments.id == "slow"
	some a in _n
	some b in _n
	some c in _n
	some d in _n
	some e in _n
	some f in _n
	f == "none"
}

_n := split("0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z", " ")
