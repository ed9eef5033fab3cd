# METADATA
# title: Desk
# description: Only while the desk is staffed.
package custom.concerns.desk

import data.authz.lib.manifest
import data.authz.lib.reason

# METADATA
# title: Desk closed
# description: The desk is closed.
# custom:
#   code: desk.closed
deny contains reason.new(rego.metadata.rule(), {}) if {
	BODY
}

_action := input.action

_tier := manifest.entry.risk_tier

_reads(value) if value.nme == 1
