# METADATA
# title: Provenance
# description: A durable change names its sources (tool boundary, normative requirements).
# schemas:
#   - input: schema.request
package authz.concerns.provenance

import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Provenance missing
# description: An argument that names the call's sources is missing, empty or blank, or has an empty part.
# custom:
#   code: provenance.missing
#   remedy: Name the sources of the call in the missing arguments.
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [name |
		some name in manifest.entry.provenance.required
		not _filled(object.get(input.context, ["arguments", name], null))
	]
	count(missing) > 0
}

# Every part of the value has to name a source. Rego has no recursion, so a part that is nested deeper than this names
# nothing: depth cannot hide a gap. The checks before the policy have the same rule.
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
