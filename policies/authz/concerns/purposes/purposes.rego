# METADATA
# title: Purposes
# description: The call states a purpose, and the tool may be used for it.
# schemas:
#   - input: schema.request
package authz.concerns.purposes

import data.authz.lib.manifest
import data.authz.lib.purpose
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Purpose missing
# description: The tool needs a purpose, and the call states none.
# custom:
#   code: purposes.missing
#   remedy: State the purpose of the run in the session's `purpose`.
deny contains reason.new(rego.metadata.rule(), {"admitted": _admitted}) if {
	_needed
	not purpose.stated
}

# METADATA
# title: Purpose not allowed
# description: The tool may not be used for the stated purpose.
# custom:
#   code: purposes.not_allowed
#   remedy: Use a tool that admits the purpose, or add the purpose to the `purposes` of this tool.
deny contains reason.new(rego.metadata.rule(), {"purpose": input.context.purpose, "admitted": _admitted}) if {
	purpose.stated
	not purpose.allowed
}

# The purposes that the tool may be used for; null where its entry names none.
default _admitted := null

_admitted := manifest.entry.purposes

_needed if is_array(manifest.entry.purposes)

_needed if manifest.entry.effect_class == "read-external"
