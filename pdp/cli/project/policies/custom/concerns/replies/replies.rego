# METADATA
# title: Replies
# description: |
#   Whatever has a recipient goes to customers and partners only. A concern adds reasons to deny, or to ask a person:
#   it never grants.
package custom.concerns.replies

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Recipient not allowed
# description: The recipient's mail domain is not one that the desk answers to.
# custom:
#   code: replies.recipient_not_allowed
deny contains reason.new(rego.metadata.rule(), {}) if {
	recipient := input.context.arguments.recipient
	not _allowed(recipient)
}

# What is allowed is a rule of its own: a recipient or a setting that is missing or mistyped is then not allowed.
_allowed(recipient) if {
	is_string(recipient)
	parts := split(recipient, "@")
	count(parts) == 2
	parts[1] in data.settings.replies.domains
}
