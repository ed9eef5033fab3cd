# METADATA
# title: Hours
# description: Some people may not read notes.
package custom.concerns.hours

import data.authz.lib.reason

# METADATA
# title: Closed
# description: Eve reads no notes.
# custom:
#   code: hours.closed
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "read_note"
	input.subject.id == "eve"
}
