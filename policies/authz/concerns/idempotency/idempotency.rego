# METADATA
# title: Idempotency
# description: A call that must not run twice has a key that identifies it.
# schemas:
#   - input: schema.request
package authz.concerns.idempotency

import data.authz.lib.manifest
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Idempotency key missing
# description: The tool needs an idempotency key, and the call has none.
# custom:
#   code: idempotency.key_missing
#   remedy: Set the session's `idempotency_key`, or let the tool's `idempotency.key` derive one.
deny contains reason.new(rego.metadata.rule(), {}) if {
	manifest.entry.idempotency.required
	not _keyed
}

_keyed if {
	is_string(input.context.idempotency_key)
	input.context.idempotency_key != ""
}
