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
# description: An argument that names the call's sources is absent or empty.
# custom:
#   code: provenance.missing
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [name |
		some name in manifest.entry.provenance.required
		not _filled(object.get(input.context, ["arguments", name], null))
	]
	count(missing) > 0
}

_filled(value) if {
	not value in {null, "", [], {}, false}
}
