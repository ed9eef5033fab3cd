# METADATA
# title: The flow of values
# description: |
#   Reads what the run has seen and where the values of the call's arguments came from, as the enforcement point states them
#   from its ledger. Labels are in use where the tool's entry has `flow`.
# schemas:
#   - input: schema.request
package authz.lib.flow

import data.authz.lib.manifest
import rego.v2

# Labels are in use, so the request has to say where its values came from.
in_use if manifest.entry.flow

# The run has read text from an untrusted source.
tainted if input.context.flow.tainted

# The labelled arguments, each with its role and its sources.
arguments contains argument if some argument in input.context.flow.arguments

# Arguments that name the target of the call.
targets := _of({"destination", "object"})

# Arguments whose value matters, such as amounts.
values := _of({"value"})

# Arguments that are fetched or written to.
addresses := _of({"url", "address"})

# A trusted source names the value: the user, the application, a field that the system writes, or an approval. A party is
# authentic, but everyone can become a party, so it counts only where the rest of the call is known.
known(item) if stated(item)

known(item) if {
	_has(item, {"party"})
	_carries_messages
	input.context.flow.intended
	input.context.flow.anchored
}

# A trusted source names the value, independent of the rest of the call.
stated(item) if _has(item, {"prompt", "fact", "trusted", "created", "named", "endorsed"})

# The user's own words name the value, the run has made it, or an approval endorsed it.
named(item) if _has(item, {"prompt", "named", "created", "endorsed"})

# The model composed at least a part of the value, and no approval reaches to other pages of its site.
composed(item) if {
	_has(item, {"model"})
	not _has(item, {"endorsed"})
}

# The call has targets, and the user named each of them.
aimed_by_user if {
	count(targets) > 0
	every target in targets {
		named(target)
	}
}

# The call contains the user's words, or the user asked for it.
anchored if input.context.flow.anchored

anchored if input.context.flow.intended

# The call may change something. A tool without an effect class may.
writes if not manifest.entry.effect_class in {"pure", "read-internal", "read-external"}

# Arguments that say where data goes, without the user's own domains. A request to an address sends data there, unless the
# address is exactly as another source wrote it: then it contains no data of the run.
sinks contains argument if {
	some argument in _of({"destination", "url", "address"})
	argument.home == false
	not _verbatim(argument)
}

_verbatim(argument) if {
	not writes
	not composed(argument)
}

# Markings that the run has read and that must not leave through this tool.
leaking := _read - _admitted

_read contains marking if some marking in input.context.flow.markings

_admitted contains marking if some marking in manifest.entry.admits

# The tool carries a message: it sends a text, and has no value that matters, such as an amount. Tools for money, access and
# deletion have no text, or have such a value. A tool without labels carries no message.
_carries_messages if {
	roles := {role | some role in manifest.entry.roles}
	roles.body
	not roles.value
	not manifest.entry.destructive
	{"stage", "commit-low"}[manifest.entry.effect_class]
}

# Roles and sources come from a closed list.
_of(roles) := {argument |
	some argument in arguments
	roles[argument.role]
}

_has(item, sources) if {
	some source in item.sources
	sources[source]
}
