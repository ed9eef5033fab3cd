# METADATA
# title: Approvals
# description: A high risk tier and a commit to an external system need a person's approval.
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
#   remedy: Ask one of the approvers for exactly this call, and make it again when it is approved.
step_up contains reason.new(rego.metadata.rule(), {"approval": object.get(manifest.entry, "approval", {})}) if {
	_needed
	not _within_limits
	count(limits.exceeded) == 0
	count(limits.overspent) == 0
}

# METADATA
# title: Approval invalid
# description: The request carries an approval that does not hold for this call.
# custom:
#   code: approvals.invalid
#   remedy: Ask for a new approval of exactly this call. Whoever takes part in it cannot approve it, but for $subject.
deny contains reason.new(rego.metadata.rule(), {"approval": _approval}) if {
	is_object(input.context.approval)
	not approval.valid
}

# Who may approve. Of a tool that the bundle does not know there is nobody, and the denial stands all the same.
default _approval := {}

_approval := manifest.entry.approval

# Anything but a tier that is known to be lower: an unknown one needs a person as well.
_needed if not _lower_tier

_needed if manifest.entry.effect_class == "commit-high"

_lower_tier if manifest.entry.risk_tier in {"low", "medium"}

_within_limits if {
	manifest.entry.approval.unless_within_limits == true
	limits.all_kept
}
