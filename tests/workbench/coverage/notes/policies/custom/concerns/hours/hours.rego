# METADATA
# title: Hours
# description: Notes are written only while the desk is staffed.
package custom.concerns.hours

import data.authz.lib.reason

# METADATA
# title: Closed
# description: The desk is closed.
# custom:
#   code: hours.closed
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "read_note"
	input.context.purpose == "night"
}

# METADATA
# title: Late
# description: It is late.
# custom:
#   code: hours.late
step_up contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "send_note"
	input.context.purpose == "late"
}

# METADATA
# title: Never
# description: It cannot be.
# custom:
#   code: hours.never
#   unreached: No request has this type.
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.subject.type == "robot"
}

# METADATA
# title: Logged
# description: Every reading is logged.
# custom:
#   code: hours.logged
obligations contains {"id": "log_level", "on": "ALLOW", "parameters": {"level": "info"}} if {
	input.action.name == "read_note"
}
