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
# title: Known
# description: |
#   A source whose word counts names the value: the user, the application, a field that the system writes, an approval.
#   A party is authentic, and yet anybody can become one: it counts where the rest of the call is known.
known(item) if {
	some source in item.sources
	source in {"prompt", "fact", "trusted", "created", "named", "endorsed"}
}

known(item) if {
	"party" in item.sources
	_vouched
}

# METADATA
# title: Named
# description: The user's own words name the value, the run has made it, or an approval endorsed it.
named(item) if {
	some source in item.sources
	source in {"prompt", "named", "created", "endorsed"}
}

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
	some argument in arguments
	argument.role in {"destination", "url", "address"}
	argument.home == false
	not _verbatim(argument)
}

_verbatim(argument) if {
	not writes
	not "model" in argument.sources
}

# METADATA
# title: Targets
# description: Arguments that say what the call is aimed at.
targets contains argument if {
	some argument in arguments
	argument.role in {"destination", "object"}
}

# METADATA
# title: Leaking
# description: Markings that the run has read, and that may not leave through this tool.
leaking contains marking if {
	some marking in input.context.flow.markings
	not marking in object.get(manifest.entry, "admits", [])
}

# A rule of its own: where the class is absent, a negated membership would be undefined.
_reads if manifest.entry.effect_class in {"pure", "read-internal", "read-external"}

_vouched if {
	some value in arguments
	value.role == "value"
	every other in _values {
		_stated(other)
	}
}

_vouched if input.context.flow.anchored

_values contains argument if {
	some argument in arguments
	argument.role == "value"
}

_stated(item) if {
	some source in item.sources
	source in {"prompt", "fact", "named", "endorsed"}
}
