# METADATA
# title: Flow
# description: |
#   What a run may do after it has read what a stranger wrote. Which findings ask is governance: a profile and single
#   rules of the tool's entry. A valid approval clears them, and the ledger remembers the values that it endorses.
# schemas:
#   - input: schema.request
package authz.concerns.flow

import data.authz.lib.flow
import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Unknown
# description: Labels are in use, and nobody knows what the run has seen.
# custom:
#   code: flow.unknown
#   remedy: Give the session a run_id, the same for all calls of one task.
deny contains reason.new(rego.metadata.rule(), {}) if {
	flow.in_use
	object.get(input.context, "flow", null) == null
}

# Findings are about a run that has read what a stranger wrote. That is asked first: other runs pay for nothing more.
deny contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
	_refuses
}

# Data must not leave to an address that nobody has named: whoever approves could not know whose it is.
deny contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
	finding.details.markings
	finding.details.sources == ["model"]
}

step_up contains finding if {
	flow.tainted
	some finding in _findings
	_codes[finding.code]
}

# METADATA
# title: Watched
# description: Findings that the profile leaves out are noted, and decide nothing.
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

# `watch` asks nothing.
_profiles := {"balanced": _balanced, "strict": array.concat(_balanced, ["address_untrusted", "not_anchored"])}

_balanced := [
	"address_composed", "aimless", "destructive", "egress", "link_untrusted", "off_plan", "target_untrusted",
	"value_untrusted",
]

# METADATA
# title: Target untrusted
# description: What the call is aimed at was chosen by nobody whose word counts.
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
# description: A value that matters, such as an amount, was chosen by nobody whose word counts.
# custom:
#   code: flow.value_untrusted
#   remedy: State the value in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	flow.writes
	some argument in (flow.values | flow.addresses)
	not flow.known(argument)
	not _worked_out(argument)
}

# What the model works out, such as a difference, and no stranger wrote, is no stranger's choice where the user has named
# the target. An address that it works out is `address_composed`.
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
# description: The address that is fetched was chosen by nobody whose word counts.
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
# description: Nobody wrote this address as a whole, so data may leave in it.
# custom:
#   code: flow.address_composed
#   remedy: Name the whole address in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(address)) if {
	some address in flow.addresses
	flow.composed(address)
}

# METADATA
# title: Link untrusted
# description: The text that goes out has a link, a mail address or an account that only a stranger names.
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
# description: Marked data that the run has read may leave here, and you did not name where it goes.
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
# description: This cannot be taken back, and your words do not ask for it, or do not name all that it is aimed at.
# custom:
#   code: flow.destructive
#   remedy: Ask for it and name what is to go in your own words, or approve it.
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
# description: The call changes something, is aimed at nothing, and is not what your words ask for.
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
# description: The call changes something and holds none of your words.
# custom:
#   code: flow.not_anchored
#   remedy: Ask for it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	not input.context.flow.anchored
}

# METADATA
# title: Off plan
# description: The plan, which was made before the run read what a stranger wrote, has no such call.
# custom:
#   code: flow.off_plan
#   remedy: Plan the call before, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	flow.writes
	plan := input.context.flow.plan
	is_array(plan)
	not input.action.properties.tool in plan
}

_of(argument) := {"argument": argument.path, "role": argument.role, "sources": argument.sources, "from": argument.from}
