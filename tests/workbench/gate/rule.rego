# METADATA
# title: Hours
# description: Notes are not read by everybody.
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
