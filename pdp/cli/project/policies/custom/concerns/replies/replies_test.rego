package custom.concerns.replies_test

import data.custom.concerns.replies

_not_allowed := {{
	"code": "replies.recipient_not_allowed",
	"message": "The desk does not answer to the recipient's mail domain.",
	"details": {},
}}

_domains := ["customer.example"]

# Each case: the input, and the complete result.
_cases := {
	"a customer": {"recipient": "ada@customer.example", "domains": _domains, "deny": set()},
	"a customer with an upper-case domain": {"recipient": "ada@CUSTOMER.example", "domains": _domains, "deny": _not_allowed},
	"a stranger": {"recipient": "ada@stranger.example", "domains": _domains, "deny": _not_allowed},
	"a domain with the same ending": {"recipient": "ada@notcustomer.example", "domains": _domains, "deny": _not_allowed},
	"two addresses in one": {"recipient": "a@stranger.example@customer.example", "domains": _domains, "deny": _not_allowed},
	"not a string": {"recipient": 7, "domains": _domains, "deny": _not_allowed},
	"no domains are set": {"recipient": "ada@customer.example", "domains": null, "deny": _not_allowed},
}

test_replies[name] if {
	some name, case in _cases
	asked := {"action": {"name": "reply_to_customer"}, "context": {"arguments": {"recipient": case.recipient}}}
	replies.deny == case.deny with input as asked with data.settings.replies.domains as case.domains
}

test_calls_without_a_recipient_are_ignored if {
	replies.deny == set() with input as {"action": {"name": "search_tickets"}, "context": {"arguments": {}}}
}
