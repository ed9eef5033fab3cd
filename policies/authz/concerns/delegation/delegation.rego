# METADATA
# title: Delegation
# description: |
#   An agent that acts for the subject needs every scope itself, and clearance, entitlement and purpose where it states
#   any: what it may do is what both may do. An agent that states no scopes has none.
# schemas:
#   - input: schema.request
package authz.concerns.delegation

import data.authz.lib.entitlement
import data.authz.lib.manifest
import data.authz.lib.reason
import data.authz.lib.resource
import data.authz.lib.subject
import rego.v2

# METADATA
# title: Agent exceeded
# description: The call needs more than an acting agent was given.
# custom:
#   code: delegation.exceeds_agent
#   remedy: Give the agent what it lacks, in the claim `act`, or let another one make the call.
deny contains reason.new(rego.metadata.rule(), {"agent": agent.sub, "exceeded": exceeded, "missing": missing}) if {
	some agent in subject.agents
	exceeded := [what | some what in ["clearances", "entitlements", "purposes", "scopes"]; _exceeds(agent, what)]
	count(exceeded) > 0
	missing := {what: _lacking(agent, what) | some what in exceeded}
}

_exceeds(agent, what) if count(_lacking(agent, what)) > 0

_lacking(agent, "scopes") := sort({scope |
	some scope in manifest.entry.scopes
	not scope in agent.scopes
})

_lacking(agent, "clearances") := sort({marking |
	some marking in resource.markings
	_ = agent.clearances
	not marking in agent.clearances
})

_exceeds(agent, "entitlements") if {
	entitlement.needed
	stated := agent.entitlements
	not entitlement.covers(stated)
}

_exceeds(agent, "purposes") if {
	_ = agent.purposes
	not input.context.purpose in agent.purposes
}
