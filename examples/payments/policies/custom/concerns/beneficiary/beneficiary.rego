# METADATA
# title: Beneficiary
# description: |
#   Money goes to the beneficiary whom the application looked up, and to nobody whom the model names. This concern is the
#   example's own: it adds a reason to deny and can grant nothing.
package custom.concerns.beneficiary

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Not looked up
# description: The beneficiary is not the one whom the application looked up.
# custom:
#   code: beneficiary.not_looked_up
deny contains reason.new(rego.metadata.rule(), {"looked_up": object.get(input.context, "looked_up_beneficiary", null)}) if {
	input.action.name == "initiate_wire"
	not _looked_up
}

# A rule of its own, so that a lookup that never was is not the beneficiary.
_looked_up if {
	is_string(input.context.looked_up_beneficiary)
	input.context.looked_up_beneficiary != ""
	input.context.arguments.beneficiary_id == input.context.looked_up_beneficiary
}
