package custom.concerns.retrieval_test

import data.custom.concerns.retrieval

_pinned := {{"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}}}

test_a_retrieval if {
	retrieval.obligations == _pinned with input as {"action": {"name": "retrieve_documents"}}
}

test_another_action if {
	retrieval.obligations == set() with input as {"action": {"name": "read_document"}}
}
