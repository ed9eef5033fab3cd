# METADATA
# title: Flow
# description: |
#   Limits what a run may do after it has read text from an untrusted source. The governance of the tool's entry, a profile
#   and single rules, selects the findings that count. A valid approval clears them, and the ledger keeps the approved values.
# schemas:
#   - input: schema.request
package authz.concerns.flow

import data.authz.lib.flow
import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Unknown
# description: The tool's entry has labels, but the request does not say what the run has read.
# custom:
#   code: flow.unknown
#   remedy: Give the session a run_id, the same for all calls of one task.
deny contains reason.new(rego.metadata.rule(), {}) if {
	flow.in_use
	object.get(input.context, "flow", null) == null
}

# Only a run that has read untrusted text can have findings. This condition comes first because it is cheap.
deny contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
	_refuses
}

# Marked data goes to a destination that the model composed, and the tool has no approvers who could look at it.
deny contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
	finding.details.markings
	finding.details.sources == ["model"]
	not _can_be_shown
}

# The tool has approvers, who see the whole call.
_can_be_shown if count(manifest.entry.approval.approvers) > 0

step_up contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
}

# METADATA
# title: Watched
# description: Findings that the profile does not use are only recorded.
# custom:
#   code: flow.watched
obligations contains {"id": "note", "on": "ALLOW", "parameters": {"codes": codes}} if {
	flow.tainted
	codes := sort({finding.code | some finding in _findings; not _codes[finding.code]})
	count(codes) > 0
}

_codes contains $"flow.{rule}" if {
	some rule in _profiles[manifest.entry.flow.profile]
	is_string(rule)
}

_codes contains $"flow.{rule}" if some rule in manifest.entry.flow.rules

_refuses if {"deny"}[manifest.entry.flow.otherwise]

# The profile `watch` asks for no approval.
_profiles := {"balanced": _balanced, "strict": array.concat(_balanced, ["address_untrusted", "not_anchored"])}

_balanced := [
	"address_composed", "aimless", "destructive", "egress", "link_untrusted", "off_plan", "target_untrusted",
	"value_untrusted",
]

# METADATA
# title: Target untrusted
# description: No trusted source named the target of the call.
# custom:
#   code: flow.target_untrusted
#   remedy: Name the target in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(target)) if {
	flow.writes
	some target in flow.targets
	not flow.known(target)
}

# METADATA
# title: Value untrusted
# description: No trusted source named an important value, such as an amount.
# custom:
#   code: flow.value_untrusted
#   remedy: State the value in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	flow.writes
	some argument in (flow.values | flow.addresses)
	not flow.known(argument)
	not _worked_out(argument)
}

# A value that the model computed, such as a difference, is accepted if no untrusted source named it and the user has
# named the target. A computed address is `address_composed`.
_worked_out(argument) if {
	argument.sources == ["model"]
	flow.aimed_by_user
}

_worked_out(argument) if {
	flow.addresses[argument]
	flow.composed(argument)
}

# METADATA
# title: Address untrusted
# description: No trusted source named the address to fetch.
# custom:
#   code: flow.address_untrusted
#   remedy: Name the address in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(address)) if {
	not flow.writes
	some address in flow.addresses
	not flow.composed(address)
	not flow.known(address)
}

# METADATA
# title: Address composed
# description: The model composed this address, so data may leave in it.
# custom:
#   code: flow.address_composed
#   remedy: Name the whole address in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(address)) if {
	some address in flow.addresses
	flow.composed(address)
}

# METADATA
# title: Link untrusted
# description: The outgoing text has a link, a mail address or an account that only an untrusted source names.
# custom:
#   code: flow.link_untrusted
#   remedy: Leave it out, name it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(object.union(argument, link))) if {
	flow.writes
	some argument in flow.arguments
	some link in argument.links
	not flow.stated(link)
}

# METADATA
# title: Egress
# description: The run has read marked data that may leave here, and you did not name the destination.
# custom:
#   code: flow.egress
#   remedy: Name the destination in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), object.union(_of(sink), {"markings": sort(flow.leaking)})) if {
	count(flow.leaking) > 0
	some sink in flow.sinks
	not flow.stated(sink)
}

# METADATA
# title: Destructive
# description: This call cannot be undone, and you did not ask for it, or did not name all of its targets.
# custom:
#   code: flow.destructive
#   remedy: Ask for it in your own words and name all of its targets, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	manifest.entry.destructive
	not _asked_for
}

_asked_for if {
	input.context.flow.intended
	flow.aimed_by_user
}

_asked_for if {
	input.context.flow.intended
	count(flow.targets) == 0
	count(flow.values) > 0
	every value in flow.values {
		flow.named(value)
	}
}

# METADATA
# title: Aimless
# description: The call changes something, has no target, and you did not ask for it.
# custom:
#   code: flow.aimless
#   remedy: Ask for it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	count(flow.targets | flow.addresses) == 0
	not flow.anchored
}

# METADATA
# title: Not anchored
# description: The call changes something and contains none of your words.
# custom:
#   code: flow.not_anchored
#   remedy: Ask for it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	not input.context.flow.anchored
}

# METADATA
# title: Off plan
# description: The run was planned before it read untrusted text, and the plan does not contain this call.
# custom:
#   code: flow.off_plan
#   remedy: Put the call into the plan, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	plan := input.context.flow.plan
	is_array(plan)
	not input.action.properties.tool in plan
}

_of(argument) := {"argument": argument.path, "role": argument.role, "sources": argument.sources, "from": argument.from}
