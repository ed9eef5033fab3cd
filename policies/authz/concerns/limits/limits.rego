# METADATA
# title: Limits
# description: |
#   Up to its limit, a call's own or that of a sum over many, a call runs by itself; above, a person has to approve it.
#   Equal is kept.
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
# description: An argument under a limit is not a number of at least zero, or cannot be counted in its sum.
# custom:
#   code: limits.invalid
#   remedy: Give the argument as a number of at least zero; in a sum, as a multiple of its unit and in its currency.
deny contains reason.new(rego.metadata.rule(), fault) if {
	some fault in limits.invalid
}

# METADATA
# title: Cumulative limit exceeded
# description: The sum would be above what the subject may spend without approval.
# custom:
#   code: limits.cumulative_exceeded
#   remedy: Stay within what is left, wait until the window ends, or ask one of the approvers.
step_up contains reason.new(
	rego.metadata.rule(),
	object.union(object.remove(spent, ["total", "window"]), {"approval": _approval}),
) if {
	some spent in limits.overspent
}

# METADATA
# title: Amount reserved
# description: What the call takes of a cumulative limit is reserved before its tool runs. An approved one has no cap.
# custom:
#   code: limits.reserved
obligations contains {"id": "reserve", "on": "ALLOW", "parameters": parameters} if {
	some spent in limits.spending
	parameters := {"limit": spent.limit, "amount": spent.amount, "cap": _cap(spent), "window": spent.window}
}

_cap(spent) := null if approval.valid

else := spent.held

# Who may approve, for whoever has to ask them.
_approval := object.get(manifest.entry, "approval", {})
