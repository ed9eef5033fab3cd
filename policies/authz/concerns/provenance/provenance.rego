# METADATA
# title: Provenance
# description: A durable mutation says what it rests on (tool boundary, normative requirements).
# schemas:
#   - input: schema.request
package authz.concerns.provenance

import data.authz.lib.manifest
import data.authz.lib.reason

# METADATA
# title: Provenance missing
# description: An argument that names the call's sources is absent, empty or blank, or has a part that is.
# custom:
#   code: provenance.missing
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [name |
		some name in manifest.entry.provenance.required
		not _filled(object.get(input.context, ["arguments", name], null))
	]
	count(missing) > 0
}

# Of what is made of parts, every part has to name something. The checks before the policy say the same.
_filled(value) if not _hollow(value)

_hollow(value) if {
	walk(value, [_, part])
	_names_nothing(part)
}

_names_nothing(part) if part in {null, [], {}, false}

_names_nothing(part) if {
	is_string(part)
	trim_space(part) == ""
}
