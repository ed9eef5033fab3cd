# METADATA
# title: Duties
# description: |
#   A user's concern that obliges whoever enforces the decision: as `data.settings.duties` says, by the names of actions.
#   The suite duties.scenarios.yaml shows what becomes of the calls.
package custom.concerns.duties

import data.authz.lib.number
import rego.v2

# METADATA
# title: Capped
# description: A larger amount than the cap is made the cap.
# custom:
#   code: duties.capped
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"set": {"amount": cap}}} if {
	cap := data.settings.duties.capped[input.action.name]
	not _within(cap)
}

_within(cap) if number.at_most(input.context.arguments.amount, cap)

# METADATA
# title: Replaced
# description: Another tool does it.
# custom:
#   code: duties.replaced
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"tool": tool}} if {
	tool := data.settings.duties.replaced[input.action.name]
}

# METADATA
# title: Masked
# description: Fields of the result are for whoever has the clearance that they take.
# custom:
#   code: duties.masked
obligations contains {"id": "redact", "on": "ALLOW", "parameters": {"fields": fields}} if {
	fields := data.settings.duties.masked[input.action.name].fields
	not _cleared(input.action.name)
}

_cleared(action) if data.settings.duties.masked[action].clearance in input.subject.properties.clearances

# METADATA
# title: Watched
# description: The decision is logged at a level of its own.
# custom:
#   code: duties.watched
obligations contains {"id": "log_level", "on": verdict, "parameters": {"level": level}} if {
	some verdict, level in data.settings.duties.watched[input.action.name]
}
