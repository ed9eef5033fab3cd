# METADATA
# title: Hours
package custom.concerns.hours

import data.authz.lib.reason

# METADATA
# title: Desk closed
# description: |
#   The desk
#   is closed.
# custom:
#   code: hours.closed
#   unreached: |
#     nobody
#     calls
step_up contains reason.new(rego.metadata.rule(), {"text": "} # {"}) if {
	not _open # a comment {
}

_open if input.context.desk == "open"

deny contains {"code": "hours.bare"} if input.context.bare

# METADATA
# title: [broken
# custom: : :
allow contains _made if true

# METADATA
# custom:
#   code: hours.made
_made := 1

# METADATA
# custom: {code: hours.logged}
obligations contains {
	"id": "log_level",
	"on": "ALLOW",
} if {
	input.context.x
} else := 3 if input.y

# METADATA
# custom: {code: hours.found}
_findings contains reason.new(rego.metadata.rule(), {}) if input.z
