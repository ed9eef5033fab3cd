# METADATA
# title: Approvals
# description: A call with a high risk tier, or that commits to an external system, needs the approval of a person.
# schemas:
#   - input: schema.request
package authz.concerns.approvals

import data.authz.lib.approval
import data.authz.lib.limits
import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Approval required
# description: A person has to approve this call before it may run.
# custom:
#   code: approvals.required
#   remedy: Ask an approver to approve exactly this call, then repeat it.
step_up contains reason.new(rego.metadata.rule(), {"approval": object.get(manifest.entry, "approval", {})}) if {
	_needed
	not _within_limits
	count(limits.exceeded) == 0
	count(limits.overspent) == 0
}

# METADATA
# title: Approval invalid
# description: The request carries an approval that is not valid for this call.
# custom:
#   code: approvals.invalid
#   remedy: Ask for a new approval of exactly this call. Only `$subject` may approve a call in which they take part.
deny contains reason.new(rego.metadata.rule(), {"approval": _approval}) if {
	is_object(input.context.approval)
	not approval.valid
}

# The roles that may approve. A tool that the bundle does not know has no approvers, and the call is still denied.
default _approval := {}

_approval := manifest.entry.approval

# Only a tier that is known to be low needs no person; an unknown tier needs one.
_needed if not _lower_tier

_needed if manifest.entry.effect_class == "commit-high"

_lower_tier if manifest.entry.risk_tier in {"low", "medium"}

_within_limits if {
	manifest.entry.approval.unless_within_limits == true
	limits.all_kept
}
