# METADATA
# title: The request's shape
# description: |
#   Checks the whole request before a concern reads it. A builtin that gets a wrong type is an error in OPA and undefined in
#   WebAssembly, where a deny that depends on it would be lost. `json.match_schema` would be shorter, but it is not native in
#   WebAssembly.
# schemas:
#   - input: schema.request
package authz.lib.shape

import data.authz.lib.number

# Subject, action, resource and context exist and have the right types.
valid if {
	named(input.subject.type)
	named(input.subject.id)
	_subject_valid(input.subject.properties)
	named(input.action.name)
	named(input.action.properties.tool)
	named(input.action.properties.manifest_version)
	named(input.action.properties.manifest_digest)
	named(input.resource.type)
	named(input.resource.id)
	strings(input.resource.properties, "markings")
	_context_valid(input.context)
}

# The value is a string that is not empty.
named(value) if {
	is_string(value)
	value != ""
}

_subject_valid(properties) if {
	strings(properties, "scopes")
	strings(properties, "clearances")
	strings(properties, "roles")
	_limits_valid(properties)
	_entitlements_valid(object.get(properties, "entitlements", {}))
	_text_or_null(object.get(properties, "iss", null))
	_agents_valid(object.get(properties, "act", null))
}

_entitlements_valid(entitlements) if {
	strings(entitlements, "corpora")
	strings(entitlements, "documents")
}

_limits_valid(holder) if {
	limits := object.get(holder, "limits", {})
	is_object(limits)
	every limit in limits {
		number.at_most(0, limit)
	}
}

_agents_valid(null)

_agents_valid(act) if {
	is_object(act)
	object.get(act, ["act", "act", "act", "act"], null) == null
	every depth in [[], ["act"], ["act", "act"], ["act", "act", "act"]] {
		_agent_valid(object.get(act, depth, null))
	}
}

_agent_valid(null)

_agent_valid(agent) if {
	named(agent.sub)
	strings(agent, "scopes")
	strings(agent, "clearances")
	strings(agent, "purposes")
	_limits_valid(agent)
	_entitlements_valid(object.get(agent, "entitlements", {}))
	_text_or_null(object.get(agent, "iss", null))
}

_context_valid(context) if {
	is_object(context)
	is_object(object.get(context, "arguments", {}))
	every name in ["agent", "call_digest", "idempotency_key", "purpose", "request_id", "run_id", "time"] {
		_text_or_null(object.get(context, name, null))
	}
	_approval_valid(object.get(context, "approval", null))
	_flow_valid(object.get(context, "flow", null))
	spent := object.get(context, "spent", [])
	is_array(spent)
	every entry in spent {
		_spent_valid(entry)
	}
}

_flow_valid(null)

_flow_valid(flow) if {
	_fields(flow, {"tainted", "untrusted", "markings", "plan", "anchored", "intended", "arguments"})
	every name in ["tainted", "anchored", "intended"] {
		is_boolean(flow[name])
	}
	strings(flow, "untrusted")
	strings(flow, "markings")
	_strings_or_null(flow, "plan")
	is_array(flow.arguments)
	every argument in flow.arguments {
		_argument_valid(argument)
	}
}

_fields(holder, names) if {
	is_object(holder)
	object.keys(holder) == names
}

_strings_or_null(holder, name) if holder[name] == null

_strings_or_null(holder, name) if strings(holder, name)

_argument_valid(argument) if {
	_fields(argument, {"path", "role", "sources", "from", "home", "links"})
	is_string(argument.path)
	{"destination", "object", "value", "url", "address", "body"}[argument.role]
	is_boolean(argument.home)
	_origin_valid(argument)
	is_array(argument.links)
	every link in argument.links {
		_fields(link, {"sources", "from"})
		_origin_valid(link)
	}
}

_origin_valid(item) if {
	strings(item, "sources")
	count(item.sources) > 0
	is_array(item.from)
	every call in item.from {
		_fields(call, {"tool", "call"})
		strings({"texts": [text | some text in call]}, "texts")
	}
}

# The amount spent, where the call can be counted in the limit; otherwise the reason why it cannot.
_spent_valid(entry) if {
	_fields(entry, {"limit", "used", "amount", "total", "window_ends"})
	named(entry.limit)
	every name in ["used", "amount", "total"] {
		number.at_most(0, entry[name])
	}
	_text_or_null(entry.window_ends)
}

_spent_valid(entry) if {
	_fields(entry, {"limit", "problem"})
	named(entry.limit)
	named(entry.problem)
}

_approval_valid(null)

_approval_valid(approval) if is_object(approval)

_text_or_null(null)

_text_or_null(value) if is_string(value)

# The field is a list of strings. A missing field counts as the empty list.
strings(holder, name) if {
	is_object(holder)
	values := object.get(holder, name, [])
	is_array(values)
	every value in values {
		is_string(value)
	}
}
