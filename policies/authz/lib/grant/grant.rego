# METADATA
# title: The lasting grant
# description: |
#   Tells which step-ups the lasting grant clears that the enforcement point took from its store. The store has checked that
#   the call is similar to the approved call; this policy checks everything else once more.
# schemas:
#   - input: schema.request
package authz.lib.grant

import data.authz.lib.approval
import data.authz.lib.manifest
import data.authz.lib.number
import data.authz.lib.shape
import rego.v2

# The grant clears a step-up whose code stood when people gave the grant. A limit is cleared up to the amount that they saw,
# and egress up to the markings of the run that they saw. Links in a text that may differ are other links.
clears(item) if {
	_valid
	item.code in input.context.grant.codes
	_within_seen(item)
}

_within_seen(item) if {
	not startswith(item.code, "limits.")
	not item.code in {"flow.egress", "flow.link_untrusted"}
}

_within_seen(item) if {
	item.code == "flow.egress"
	every marking in item.details.markings {
		marking in input.context.grant.markings
	}
}

_within_seen(item) if {
	item.code == "flow.link_untrusted"
	name := split(item.details.argument, "/")[1]
	not _free(name)
}

_free(name) if $"/{name}" in manifest.entry.approval.lasting.free

_within_seen(item) if {
	item.code == "limits.exceeded"
	number.at_most(item.details.value, input.context.grant.most[item.details.argument])
}

# A missing or mistyped field, in the grant or in the tool's entry, makes the grant invalid.
_valid if {
	grant := input.context.grant
	lasting := manifest.entry.approval.lasting
	_lower_class
	shape.named(grant.id)
	grant.tool == input.action.properties.tool
	grant.reach in lasting.reaches
	_in_reach(grant)
	number.at_most(0, grant.age_seconds)
	number.at_most(grant.age_seconds, lasting.max_seconds)
	number.at_most(1, grant.uses_left)
	number.at_most(grant.uses_left, lasting.uses)
	shape.strings(grant, "codes")
	approval.enough(grant.grants)
}

# Each call of the class commit-high needs its own approval. An entry without an effect class may be of this class.
_lower_class if manifest.entry.effect_class in {"pure", "read-internal", "read-external", "stage", "commit-low"}

_in_reach(grant) if grant.reach == "until"

_in_reach(grant) if {
	grant.reach == "run"
	shape.named(grant.run_id)
	grant.run_id == input.context.run_id
}
