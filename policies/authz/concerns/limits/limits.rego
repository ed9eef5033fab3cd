# METADATA
# title: Limits
# description: |
#   A call runs without approval as long as it stays within its limit: a limit on one call, or on the sum of many calls.
#   An amount that equals the limit is within it. Above the limit, a person has to approve.
# schemas:
#   - input: schema.request
package authz.concerns.limits

import data.authz.lib.approval
import data.authz.lib.limits
import data.authz.lib.manifest
import data.authz.lib.reason

# METADATA
# title: Limit exceeded
# description: The amount is above what the subject may do without approval.
# custom:
#   code: limits.exceeded
#   remedy: Stay within the limit, or ask one of the approvers. A session has its limits in the claim `limits`.
step_up contains reason.new(rego.metadata.rule(), object.union(exceeded, {"approval": _approval})) if {
	some exceeded in limits.exceeded
}

# METADATA
# title: Limited argument invalid
# description: An argument with a limit is negative or not a number, or it cannot be added to its sum.
# custom:
#   code: limits.invalid
#   remedy: Give the argument as a number of at least zero. In a sum, give a multiple of its unit, in its currency.
deny contains reason.new(rego.metadata.rule(), fault) if {
	some fault in limits.invalid
}

# METADATA
# title: Cumulative limit exceeded
# description: The sum would exceed the amount that the subject may spend without approval.
# custom:
#   code: limits.cumulative_exceeded
#   remedy: Stay within the remaining amount, wait until the window ends, or ask one of the approvers.
step_up contains reason.new(
	rego.metadata.rule(),
	object.union(object.remove(spent, ["total", "window"]), {"approval": _approval}),
) if {
	some spent in limits.overspent
}

# METADATA
# title: Amount reserved
# description: The call's amount is reserved in the sum before the tool runs. An approved call may exceed the limit.
# custom:
#   code: limits.reserved
obligations contains {"id": "reserve", "on": "ALLOW", "parameters": parameters} if {
	some spent in limits.spending
	parameters := {"limit": spent.limit, "amount": spent.amount, "cap": _cap(spent), "window": spent.window}
}

_cap(spent) := null if approval.valid

else := spent.held

# The roles that may approve, so that the application can ask them.
_approval := object.get(manifest.entry, "approval", {})
