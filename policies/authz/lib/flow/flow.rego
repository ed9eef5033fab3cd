# METADATA
# title: The flow of values
# description: |
#   What the run has seen, and where the values of the call's arguments came from, as the enforcement point found them in
#   its ledger. Labels are in use where the tool's entry has `flow`.
# schemas:
#   - input: schema.request
package authz.lib.flow

import data.authz.lib.manifest

# METADATA
# title: In use
# description: Labels are in use, so that the request has to say where its values came from.
in_use if manifest.entry.flow

# METADATA
# title: Tainted
# description: The run has read what a stranger wrote.
tainted if input.context.flow.tainted

# METADATA
# title: Arguments
# description: The labelled arguments, each with its role and its sources.
arguments contains argument if some argument in input.context.flow.arguments

# METADATA
# title: Targets
# description: Arguments that say what the call is aimed at.
targets := _of({"destination", "object"})

# METADATA
# title: Values
# description: Arguments that matter by what they are, such as amounts.
values := _of({"value"})

# METADATA
# title: Addresses
# description: Arguments that are fetched or written to.
addresses := _of({"url", "address"})

# METADATA
# title: Known
# description: |
#   A source whose word counts names the value: the user, the application, a field that the system writes, an approval.
#   A party is authentic, and yet anybody can become one: it counts where the rest of the call is known.
known(item) if stated(item)

known(item) if {
	_has(item, {"party"})
	_vouched
}

# METADATA
# title: Stated
# description: A source whose word counts names the value, whatever else the call has.
stated(item) if _has(item, {"prompt", "fact", "trusted", "created", "named", "endorsed"})

# METADATA
# title: Named
# description: The user's own words name the value, the run has made it, or an approval endorsed it.
named(item) if _has(item, {"prompt", "named", "created", "endorsed"})

# METADATA
# title: Composed
# description: Nobody has written the value as a whole; some of it is the model's own.
composed(item) if _has(item, {"model"})

# METADATA
# title: Aimed by the user
# description: The call has targets, and the user's own words name each of them.
aimed_by_user if {
	count(targets) > 0
	every target in targets {
		named(target)
	}
}

# METADATA
# title: Anchored
# description: The call holds the user's words, or is what they ask for.
anchored if input.context.flow.anchored

anchored if input.context.flow.intended

# METADATA
# title: Writes
# description: The call may change something. Without an effect class it may.
writes if not _reads

# METADATA
# title: Sinks
# description: |
#   Arguments that say where data goes, but for the user's own domains. To fetch an address is to send to it, unless it
#   is fetched as somebody else wrote it: then nothing of the run can be in it.
sinks contains argument if {
	some argument in _of({"destination", "url", "address"})
	argument.home == false
	not _verbatim(argument)
}

_verbatim(argument) if {
	not writes
	not composed(argument)
}

# METADATA
# title: Leaking
# description: Markings that the run has read, and that may not leave through this tool.
leaking := _read - _admitted

_read contains marking if some marking in input.context.flow.markings

_admitted contains marking if some marking in manifest.entry.admits

# A rule of its own: where the class is absent, a negated lookup would be undefined.
_reads if {"pure", "read-internal", "read-external"}[manifest.entry.effect_class]

_vouched if {
	count(values) > 0
	every value in values {
		_has(value, {"prompt", "fact", "named", "endorsed"})
	}
}

_vouched if input.context.flow.anchored

# Roles and sources are looked up: they are words of a closed list.
_of(roles) := {argument |
	some argument in arguments
	roles[argument.role]
}

_has(item, sources) if {
	some source in item.sources
	sources[source]
}
