# METADATA
# title: Beneficiary
# description: |
#   Money goes only to the beneficiary that the application looked up, not to one that the model names. This concern belongs
#   to the example. It adds a reason to deny and can grant nothing.
package custom.concerns.beneficiary

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Not looked up
# description: The beneficiary is not the one that the application looked up.
# custom:
#   code: beneficiary.not_looked_up
deny contains reason.new(rego.metadata.rule(), {"looked_up": object.get(input.context, "looked_up_beneficiary", null)}) if {
	input.action.name == "initiate_wire"
	not _looked_up
}

# This is a separate rule, so that a missing lookup is not equal to a missing beneficiary.
_looked_up if {
	is_string(input.context.looked_up_beneficiary)
	input.context.looked_up_beneficiary != ""
	input.context.arguments.beneficiary_id == input.context.looked_up_beneficiary
}
