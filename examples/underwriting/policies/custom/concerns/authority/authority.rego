# METADATA
# title: Authority
# description: |
#   The desk binds premiums up to `settings.underwriting.largest_premium`, by currency. A higher premium, or one in another
#   currency, is neither staged nor issued, even with an approval.
package custom.concerns.authority

import data.authz.lib.number
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Exceeded
# description: The premium is above the amount that the desk may bind.
# custom:
#   code: authority.exceeded
deny contains reason.new(rego.metadata.rule(), {"premium": premium}) if {
	some premium in _premiums
	not _within(premium)
}

_premiums contains input.context.arguments.premium if input.action.name == "issue_policy"

_premiums contains input.context.arguments.action.payload.premium if input.action.name == "stage_policy"

_within(premium) if {
	number.at_most(premium.amount, data.settings.underwriting.largest_premium[premium.currency])
}
