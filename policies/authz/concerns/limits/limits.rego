# METADATA
# title: Limits
# description: Up to its limit a call runs by itself; above, a person has to approve it. Equal is kept.
# schemas:
#   - input: schema.request
package authz.concerns.limits

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
# description: An argument under a limit is not a number of at least zero.
# custom:
#   code: limits.invalid
#   remedy: Give the argument as a number of at least zero.
deny contains reason.new(rego.metadata.rule(), {"limit": limit.limit, "argument": limit.argument}) if {
	some limit in limits.invalid
}

# Who may approve, for whoever has to ask them.
_approval := object.get(manifest.entry, "approval", {})
