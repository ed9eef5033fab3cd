# METADATA
# title: Provenance
# description: A durable mutation says what it rests on (tool boundary, normative requirements).
# schemas:
#   - input: schema.request
package authz.concerns.provenance

import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Provenance missing
# description: An argument that names the call's sources is absent, empty or blank, or has a part that is.
# custom:
#   code: provenance.missing
#   remedy: Name in the missing arguments what the call rests on.
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [name |
		some name in manifest.entry.provenance.required
		not _filled(object.get(input.context, ["arguments", name], null))
	]
	count(missing) > 0
}

# Every part of it has to name something. Rego has no recursion: what is nested deeper than here names nothing, so that
# depth hides no gap. The checks before the policy say the same.
_filled(value) if {
	first := _parts([value])
	second := _parts(first)
	third := _parts(second)
	fourth := _parts(third)
	every level in [[value], first, second, third, fourth] {
		every part in level {
			_names(part)
		}
	}
	count(_parts(fourth)) == 0
}

_parts(values) := [part |
	some value in values
	some part in value
]

_names(true)

_names(value) if is_number(value)

_names(value) if {
	is_string(value)
	trim_space(value) != ""
}

_names(value) if {
	is_array(value)
	count(value) > 0
}

_names(value) if {
	is_object(value)
	count(value) > 0
}
