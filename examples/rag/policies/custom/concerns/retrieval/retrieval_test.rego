package custom.concerns.retrieval_test

import data.custom.concerns.retrieval

_pinned := {{"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}}}

_nothing_asked := {{
	"code": "retrieval.nothing_asked",
	"message": "The query is empty, so the retrieval would list every document.",
	"details": {},
}}

_cases := {
	"a query": {"action": "retrieve_documents", "arguments": {"query": "refund"}, "deny": set(), "obligations": _pinned},
	"empty": {"action": "retrieve_documents", "arguments": {"query": ""}, "deny": _nothing_asked, "obligations": _pinned},
	"absent": {"action": "retrieve_documents", "arguments": {}, "deny": _nothing_asked, "obligations": _pinned},
	"not a text": {
		"action": "retrieve_documents", "arguments": {"query": ["refund"]},
		"deny": _nothing_asked, "obligations": _pinned,
	},
	"another action": {"action": "read_document", "arguments": {}, "deny": set(), "obligations": set()},
}

test_retrieval[name] if {
	some name, case in _cases
	asked := {"action": {"name": case.action}, "context": {"arguments": case.arguments}}
	retrieval.deny == case.deny with input as asked
	retrieval.obligations == case.obligations with input as asked
}
