# METADATA
# title: Duties
# description: |
#   A user's concern whose obligations come from `data.settings.duties`, by the names of actions. The suite
#   duties.scenarios.yaml shows the effects on the calls.
package custom.concerns.duties

import data.authz.lib.number
import rego.v2

# METADATA
# title: Capped
# description: An amount above the cap is lowered to the cap.
# custom:
#   code: duties.capped
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"set": {"amount": cap}}} if {
	cap := data.settings.duties.capped[input.action.name]
	not _within(cap)
}

_within(cap) if number.at_most(input.context.arguments.amount, cap)

# METADATA
# title: Replaced
# description: Another tool runs instead.
# custom:
#   code: duties.replaced
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"tool": tool}} if {
	tool := data.settings.duties.replaced[input.action.name]
}

# METADATA
# title: Masked
# description: Fields of the result are removed unless the subject has their clearance.
# custom:
#   code: duties.masked
obligations contains {"id": "redact", "on": "ALLOW", "parameters": {"fields": fields}} if {
	fields := data.settings.duties.masked[input.action.name].fields
	not _cleared(input.action.name)
}

_cleared(action) if data.settings.duties.masked[action].clearance in input.subject.properties.clearances

# METADATA
# title: Watched
# description: The decision is logged at its own level.
# custom:
#   code: duties.watched
obligations contains {"id": "log_level", "on": verdict, "parameters": {"level": level}} if {
	some verdict, level in data.settings.duties.watched[input.action.name]
}
