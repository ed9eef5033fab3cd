# METADATA
# title: Purposes
# description: The call states a purpose that the tool may be used for.
# schemas:
#   - input: schema.request
package authz.concerns.purposes

import data.authz.lib.manifest
import data.authz.lib.purpose
import data.authz.lib.reason

# METADATA
# title: Purpose missing
# description: The tool needs a purpose, and the call states none.
# custom:
#   code: purposes.missing
deny contains reason.new(rego.metadata.rule(), {}) if {
	_needed
	not purpose.stated
}

# METADATA
# title: Purpose not allowed
# description: The tool may not be used for the stated purpose.
# custom:
#   code: purposes.not_allowed
deny contains reason.new(rego.metadata.rule(), {"purpose": input.context.purpose}) if {
	purpose.stated
	not purpose.allowed
}

_needed if is_array(manifest.entry.purposes)

_needed if manifest.entry.effect_class == "read-external"
