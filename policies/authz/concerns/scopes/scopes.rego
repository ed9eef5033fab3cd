# METADATA
# title: Scopes
# description: The subject holds every scope that the tool needs. This concern only restricts; it never allows.
# schemas:
#   - input: schema.request
package authz.concerns.scopes

import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Scope missing
# description: The subject does not hold every scope that the tool needs.
# custom:
#   code: scopes.missing
#   remedy: "Ask for the missing scopes. A session has them in the claims `emts`, as {SCOPE: true}, or `scope`, as a text."
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [scope |
		some scope in manifest.entry.scopes
		not scope in input.subject.properties.scopes
	]
	count(missing) > 0
}
