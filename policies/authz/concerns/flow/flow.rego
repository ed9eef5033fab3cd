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

deny contains finding if {
	some finding in _findings
	_asks(finding)
	_otherwise == "deny"
}

# Data must not leave to an address that nobody has named: whoever approves could not know whose it is.
deny contains finding if {
	some finding in _findings
	_asks(finding)
	finding.code == "flow.egress"
	finding.details.sources == ["model"]
}

step_up contains finding if {
	some finding in _findings
	_asks(finding)
	_otherwise != "deny"
}

# METADATA
# title: Watched
# description: Findings that the profile leaves out are noted, and decide nothing.
# custom:
#   code: flow.watched
obligations contains {"id": "note", "on": "ALLOW", "parameters": {"codes": codes}} if {
	codes := sort({finding.code | some finding in _findings; not _asks(finding)})
	count(codes) > 0
}

_asks(finding) if finding.code in _codes

_codes contains $"flow.{rule}" if some rule in _profile(manifest.entry.flow.profile)

_codes contains $"flow.{rule}" if some rule in manifest.entry.flow.rules

default _otherwise := "step_up"

_otherwise := manifest.entry.flow.otherwise

_profile("watch") := []

_profile("balanced") := _balanced

_profile("strict") := array.concat(_balanced, ["address_untrusted", "not_anchored"])

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
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	_tainted_write
	some argument in flow.arguments
	argument.role in {"destination", "object"}
	not flow.known(argument)
}

# METADATA
# title: Value untrusted
# description: A value that matters, such as an amount, was chosen by nobody whose word counts.
# custom:
#   code: flow.value_untrusted
#   remedy: State the value in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	flow.tainted
	some argument in flow.arguments
	_matters(argument)
	not flow.known(argument)
	not _computed(argument)
}

_matters(argument) if {
	argument.role == "value"
	flow.writes
}

_matters(argument) if {
	argument.role in {"url", "address"}
	flow.writes
	not "model" in argument.sources
}

# What the model works out, such as a difference, and no stranger wrote, for a target that the user has named.
_computed(argument) if {
	argument.role == "value"
	argument.sources == ["model"]
	flow.aimed_by_user
}

# METADATA
# title: Address untrusted
# description: The address that is fetched was chosen by nobody whose word counts.
# custom:
#   code: flow.address_untrusted
#   remedy: Name the address in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	flow.tainted
	not flow.writes
	some argument in flow.arguments
	argument.role in {"url", "address"}
	not "model" in argument.sources
	not flow.known(argument)
}

# METADATA
# title: Address composed
# description: Nobody wrote this address as a whole, so data may leave in it.
# custom:
#   code: flow.address_composed
#   remedy: Name the whole address in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(argument)) if {
	flow.tainted
	some argument in flow.arguments
	argument.role in {"url", "address"}
	"model" in argument.sources
}

# METADATA
# title: Link untrusted
# description: The text that goes out has a link that only a stranger names.
# custom:
#   code: flow.link_untrusted
#   remedy: Leave the link out, name it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), _of(object.union(argument, link))) if {
	_tainted_write
	some argument in flow.arguments
	some link in argument.links
	not flow.known(link)
}

# METADATA
# title: Egress
# description: Marked data that the run has read may leave here, and you did not name where it goes.
# custom:
#   code: flow.egress
#   remedy: Name the destination in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), object.union(_of(sink), {"markings": sort(flow.leaking)})) if {
	flow.tainted
	count(flow.leaking) > 0
	some sink in flow.sinks
	not flow.known(sink)
}

# METADATA
# title: Destructive
# description: This cannot be taken back, and your words do not name what it is aimed at.
# custom:
#   code: flow.destructive
#   remedy: Name what is to go in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	_tainted_write
	manifest.entry.destructive == true
	not _names_target
}

_names_target if {
	some target in flow.targets
	flow.named(target)
}

_names_target if {
	count(flow.targets) == 0
	some argument in flow.arguments
	flow.named(argument)
}

# METADATA
# title: Aimless
# description: The call changes something, is aimed at nothing, and is not what your words ask for.
# custom:
#   code: flow.aimless
#   remedy: Ask for it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	_tainted_write
	not _aimed
	not flow.anchored
}

_aimed if {
	some argument in flow.arguments
	argument.role in {"destination", "object", "url", "address"}
}

# METADATA
# title: Not anchored
# description: The call changes something and holds none of your words.
# custom:
#   code: flow.not_anchored
#   remedy: Ask for it in your own words, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	_tainted_write
	not input.context.flow.anchored
}

# METADATA
# title: Off plan
# description: The plan, which was made before the run read what a stranger wrote, has no such call.
# custom:
#   code: flow.off_plan
#   remedy: Plan the call before, or approve it.
_findings contains reason.new(rego.metadata.rule(), {}) if {
	_tainted_write
	plan := input.context.flow.plan
	is_array(plan)
	not input.action.properties.tool in plan
}

_tainted_write if {
	flow.tainted
	flow.writes
}

_of(argument) := {"argument": argument.path, "role": argument.role, "sources": argument.sources, "from": argument.from}
