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

# METADATA
# title: Agent exceeded
# description: The call needs more than an acting agent was given.
# custom:
#   code: delegation.exceeds_agent
deny contains reason.new(rego.metadata.rule(), {"agent": agent.sub, "exceeded": exceeded}) if {
	some agent in subject.agents
	exceeded := [what | some what in ["clearances", "entitlements", "purposes", "scopes"]; _exceeds(agent, what)]
	count(exceeded) > 0
}

_exceeds(agent, "scopes") if {
	some scope in manifest.entry.scopes
	not _holds(agent, "scopes", scope)
}

_exceeds(agent, "clearances") if {
	some marking in resource.markings
	_ = agent.clearances
	not _holds(agent, "clearances", marking)
}

_exceeds(agent, "entitlements") if {
	entitlement.needed
	stated := agent.entitlements
	not entitlement.covers(stated)
}

_exceeds(agent, "purposes") if {
	_ = agent.purposes
	not _for_its_purpose(agent)
}

_holds(agent, attribute, value) if value in agent[attribute]

_for_its_purpose(agent) if input.context.purpose in agent.purposes
