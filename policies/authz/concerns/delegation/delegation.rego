# METADATA
# title: Delegation
# description: |
#   An agent that acts for the subject needs every scope itself. Where it states clearances, entitlements or purposes, these
#   must allow the call as well. So a call may do only what both subject and agent may do. An agent without scopes has none.
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
# description: The call needs a permission that an acting agent does not have.
# custom:
#   code: delegation.exceeds_agent
#   remedy: Give the agent the missing permission in the claim `act`, or let another agent make the call.
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
