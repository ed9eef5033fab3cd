# METADATA
# title: Step-up limits
# description: Which of the entry's limits the call keeps. The concerns `limits` and `approvals` both ask.
# schemas:
#   - input: schema.request
package authz.lib.limits

import data.authz.lib.manifest
import data.authz.lib.number
import data.authz.lib.subject

# METADATA
# title: Invalid
# description: Limits whose argument is not a number of at least zero.
invalid contains limit if {
	some limit in manifest.entry.limits
	not _numeric(limit.argument)
}

# METADATA
# title: Exceeded
# description: |
#   Limits that the subject, or an agent that states them, does not have or that the argument exceeds. `held` is the
#   lowest that they have, null where one of them has none.
exceeded contains {"limit": limit.limit, "argument": limit.argument, "value": value, "held": held} if {
	some limit in manifest.entry.limits
	value := input.context.arguments[limit.argument]
	number.at_most(0, value)
	not _kept(limit.limit, value)
	held := min({object.get(stated, limit.limit, null) | some stated in _stated})
}

# METADATA
# title: All kept
# description: The entry declares limits, and the call keeps every one of them.
all_kept if {
	count(manifest.entry.limits) > 0
	count(invalid) == 0
	count(exceeded) == 0
}

_numeric(argument) if number.at_most(0, input.context.arguments[argument])

_stated contains object.get(input.subject.properties, "limits", {})

_stated contains agent.limits if some agent in subject.agents

_kept(limit, value) if {
	number.at_most(value, input.subject.properties.limits[limit])
	every stated in [agent.limits | some agent in subject.agents] {
		number.at_most(value, stated[limit])
	}
}
