# METADATA
# title: The tool's entry
# description: |
#   Finds the effective manifest by the digest in the request, and the tool's entry in it. Both come from the bundle, so a
#   caller cannot describe its own tool.
# schemas:
#   - input: schema.request
package authz.lib.manifest

# The effective manifest; undefined when the bundle has no valid manifest with that digest.
manifest := found if {
	found := data.manifests[input.action.properties.manifest_digest]
	is_object(found)
	is_object(object.get(found, "agents", {}))
}

# The tool's effective entry; undefined when there is none, which the concern `manifest` denies. An entry with a missing or
# mistyped field is also undefined: a limit that cannot be read must not count as kept.
entry := found if {
	found := manifest.tools[input.action.properties.tool]
	is_array(found.scopes)
	is_array(found.limits)
	every limit in found.limits {
		is_string(limit.limit)
		_limits_something(limit)
	}
	is_boolean(found.idempotency.required)
	is_array(found.provenance.required)
	is_array(object.get(found, "markings", []))
	is_array(object.get(found, "purposes", []))
	is_object(object.get(found, "release", {}))
	is_object(object.get(found, "approval", {}))
	is_array(object.get(found, "admits", []))
	_flow_valid(object.get(found, "flow", null))
}

_flow_valid(null)

_flow_valid(flow) if {
	{"watch", "balanced", "strict"}[flow.profile]
	is_array(object.get(flow, "rules", []))
	{"step_up", "deny"}[object.get(flow, "otherwise", "step_up")]
}

_limits_something(limit) if is_string(limit.argument)

_limits_something(limit) if {
	limit.count == true
	is_string(limit.per)
}
