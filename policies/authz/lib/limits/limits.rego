# METADATA
# title: Step-up limits
# description: |
#   Finds which of the entry's limits the call keeps, for the concerns `limits` and `approvals`. The enforcement point states
#   the sums in `context.spent`. They are not computed here, because the engines differ in fractions.
# schemas:
#   - input: schema.request
package authz.lib.limits

import data.authz.lib.manifest
import data.authz.lib.number
import data.authz.lib.subject
import rego.v2

# Limits whose argument is negative or not a number, and cumulative limits whose sum is unknown or cannot count this call.
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

# Limits that the call exceeds, or that the subject or an agent with limits does not have. `held` is the lowest limit of
# all of them, and null where one of them has none.
exceeded contains {"limit": limit.limit, "argument": limit.argument, "value": value, "held": _held(limit.limit)} if {
	some limit in _of_one_call
	value := input.context.arguments[limit.argument]
	number.at_most(0, value)
	not _kept(limit.limit, value)
}

# The amount of the call for each cumulative limit, as the enforcement point states it, with the limit `held`.
spending contains object.union(spent, {"held": _held(spent.limit), "window": object.get(limit, "window", null)}) if {
	some limit in _cumulative
	some spent in _shown(limit.limit)
}

# The sums that would exceed their limit. A call that takes nothing exceeds none.
overspent contains spent if {
	some spent in spending
	total := _total(spent)
	not _kept(spent.limit, total)
}

# The entry declares limits, and the call keeps all of them.
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
