# METADATA
# title: Ceiling
# description: Every wire stays below the ceiling.
package custom.concerns.ceiling

import data.authz.lib.number
import data.authz.lib.reason

# METADATA
# title: Reached
# description: The wire reaches the ceiling.
# custom:
#   code: ceiling.reached
deny contains reason.new(rego.metadata.rule(), {}) if {
	number.at_most(50, input.context.arguments.amount)
}
