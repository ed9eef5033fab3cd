# METADATA
# title: The subject's agents
# description: Lists the agents that act for the subject, as the verified claims nest them (RFC 8693, `act`).
# schemas:
#   - input: schema.request
package authz.lib.subject

# The chain of acting agents, the nearest first. Rego has no recursion; `shape` rejects longer chains.
agents contains agent if {
	some path in [["act"], ["act", "act"], ["act", "act", "act"], ["act", "act", "act", "act"]]
	agent := object.get(input.subject.properties, path, null)
	agent != null
}
