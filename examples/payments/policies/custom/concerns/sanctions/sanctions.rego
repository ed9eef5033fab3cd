# METADATA
# title: Sanctions
# description: |
#   No money moves to a beneficiary without a sanctions screening. This concern belongs to the example. It adds a reason to
#   deny and can grant nothing.
package custom.concerns.sanctions

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Beneficiary not clear
# description: The beneficiary's sanctions screening is missing or not clear.
# custom:
#   code: sanctions.not_clear
deny contains reason.new(rego.metadata.rule(), {"status": object.get(input.context, "sanctions_status", null)}) if {
	input.action.name == "initiate_wire"
	not _clear
}

# This is a separate rule, so that a missing status does not count as clear.
_clear if input.context.sanctions_status == "clear"
