# METADATA
# title: Purpose
# description: Tells whether the call states a purpose, and whether the tool may be used for it.
# schemas:
#   - input: schema.request
package authz.lib.purpose

import data.authz.lib.manifest
import rego.v2

# The call states a purpose.
stated if {
	is_string(input.context.purpose)
	input.context.purpose != ""
}

# The call states a purpose, and the tool's entry names it or has no list of purposes.
allowed if {
	stated
	not manifest.entry.purposes
}

allowed if {
	stated
	input.context.purpose in manifest.entry.purposes
}
