# METADATA
# title: Step-up limits
# description: |
#   Which of the entry's limits the call keeps. The concerns `limits` and `approvals` both ask. Sums are not computed here:
#   in fractions, engines differ. The enforcement point says in `context.spent` what a sum is and what it would be.
# schemas:
#   - input: schema.request
package authz.lib.limits

import data.authz.lib.manifest
import data.authz.lib.number
import data.authz.lib.subject
import rego.v2

# Limits whose argument is not a number of at least zero, and cumulative ones of which it is not known what is spent, or
# that cannot be counted for this call.
invalid contains {"limit": limit.limit, "argument": limit.argument} if {
	some limit in _of_one_call
	not number.at_most(0, input.context.arguments[limit.argument])
}

invalid contains {"limit": limit.limit, "problem": problem} if {
	some limit in _cumulative
	count(_shown(limit.limit)) != 1
	problem := "the request does not say what is spent"
}

invalid contains {"limit": limit.limit, "problem": problem} if {
	some limit in _cumulative
	some problem in {spent.problem | some spent in _shown(limit.limit)}
}

# Limits that the subject, or an agent that states them, does not have or that the argument exceeds. `held` is the
# lowest that they have, null where one of them has none.
exceeded contains {"limit": limit.limit, "argument": limit.argument, "value": value, "held": _held(limit.limit)} if {
	some limit in _of_one_call
	value := input.context.arguments[limit.argument]
	number.at_most(0, value)
	not _kept(limit.limit, value)
}

# What the call takes of each cumulative limit, as the enforcement point has it, with what is `held`.
spending contains object.union(spent, {"held": _held(spent.limit), "window": object.get(limit, "window", null)}) if {
	some limit in _cumulative
	some spent in _shown(limit.limit)
}

# What of it would pass the sum that is held. What takes nothing passes none.
overspent contains spent if {
	some spent in spending
	total := _total(spent)
	not _kept(spent.limit, total)
}

# The entry declares limits, and the call keeps every one of them.
all_kept if {
	count(manifest.entry.limits) > 0
	count(invalid) == 0
	count(exceeded) == 0
	count(overspent) == 0
}

_of_one_call contains limit if {
	some limit in manifest.entry.limits
	not limit.per
}

_cumulative contains limit if {
	some limit in manifest.entry.limits
	limit.per
}

_total(spent) := spent.amount if spent.amount == 0

else := spent.total

_shown(name) := [spent | some spent in input.context.spent; spent.limit == name]

_held(name) := min({object.get(stated, name, null) | some stated in _stated})

_stated contains object.get(input.subject.properties, "limits", {})

_stated contains agent.limits if some agent in subject.agents

_kept(limit, value) if {
	number.at_most(value, input.subject.properties.limits[limit])
	every stated in [agent.limits | some agent in subject.agents] {
		number.at_most(value, stated[limit])
	}
}
