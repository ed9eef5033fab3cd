# METADATA
# title: The flow of values
# description: |
#   What the run has seen, and where the values of the call's arguments came from, as the enforcement point found them in
#   its ledger. Labels are in use where the tool's entry has `flow`.
# schemas:
#   - input: schema.request
package authz.lib.flow

import data.authz.lib.manifest

# Labels are in use, so that the request has to say where its values came from.
in_use if manifest.entry.flow

# The run has read what a stranger wrote.
tainted if input.context.flow.tainted

# The labelled arguments, each with its role and its sources.
arguments contains argument if some argument in input.context.flow.arguments

# Arguments that say what the call is aimed at.
targets := _of({"destination", "object"})

# Arguments that matter by what they are, such as amounts.
values := _of({"value"})

# Arguments that are fetched or written to.
addresses := _of({"url", "address"})

# A source whose word counts names the value: the user, the application, a field that the system writes, an approval.
# A party is authentic, and yet anybody can become one: it counts where the rest of the call is known.
known(item) if stated(item)

known(item) if {
	_has(item, {"party"})
	_carries_messages
	input.context.flow.intended
	input.context.flow.anchored
}

# A source whose word counts names the value, whatever else the call has.
stated(item) if _has(item, {"prompt", "fact", "trusted", "created", "named", "endorsed"})

# The user's own words name the value, the run has made it, or an approval endorsed it.
named(item) if _has(item, {"prompt", "named", "created", "endorsed"})

# Nobody has written the value as a whole; some of it is the model's own.
composed(item) if _has(item, {"model"})

# The call has targets, and the user's own words name each of them.
aimed_by_user if {
	count(targets) > 0
	every target in targets {
		named(target)
	}
}

# The call holds the user's words, or is what they ask for.
anchored if input.context.flow.anchored

anchored if input.context.flow.intended

# The call may change something. Without an effect class it may.
writes if not _reads

# Arguments that say where data goes, but for the user's own domains. To fetch an address is to send to it, unless it
# is fetched as somebody else wrote it: then nothing of the run can be in it.
sinks contains argument if {
	some argument in _of({"destination", "url", "address"})
	argument.home == false
	not _verbatim(argument)
}

_verbatim(argument) if {
	not writes
	not composed(argument)
}

# Markings that the run has read, and that may not leave through this tool.
leaking := _read - _admitted

_read contains marking if some marking in input.context.flow.markings

_admitted contains marking if some marking in manifest.entry.admits

# A rule of its own: where the class is absent, a negated lookup would be undefined.
_reads if {"pure", "read-internal", "read-external"}[manifest.entry.effect_class]

# The tool carries a message: a text goes out, and nothing that matters by its amount. Money, access and deletion have no
# such text, or a value beside it. Without labels it carries none.
_carries_messages if {
	roles := {role | some role in manifest.entry.roles}
	roles.body
	not roles.value
	not manifest.entry.destructive
	{"stage", "commit-low"}[manifest.entry.effect_class]
}

# Roles and sources are looked up: they are words of a closed list.
_of(roles) := {argument |
	some argument in arguments
	roles[argument.role]
}

_has(item, sources) if {
	some source in item.sources
	sources[source]
}
