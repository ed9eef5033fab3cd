# METADATA
# title: Replies
# description: |
#   Calls with a recipient may go to customers and partners only. A concern adds reasons to deny a call, or to require
#   approval. It never grants a call.
package custom.concerns.replies

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Recipient not allowed
# description: The desk does not answer to the recipient's mail domain.
# custom:
#   code: replies.recipient_not_allowed
deny contains reason.new(rego.metadata.rule(), {}) if {
	recipient := input.context.arguments.recipient
	not _allowed(recipient)
}

# A separate rule, so that a missing or mistyped recipient or setting is not allowed.
_allowed(recipient) if {
	is_string(recipient)
	parts := split(recipient, "@")
	count(parts) == 2
	parts[1] in data.settings.replies.domains
}
