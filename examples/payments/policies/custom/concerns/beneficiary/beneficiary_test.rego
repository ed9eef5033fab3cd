package custom.concerns.beneficiary_test

import data.custom.concerns.beneficiary

_not_looked_up(found) := {{
	"code": "beneficiary.not_looked_up",
	"message": "The beneficiary is not the one that the application looked up.",
	"details": {"looked_up": found},
}}

_cases := {
	"the one looked up": {"to": "bene-1", "context": {"looked_up_beneficiary": "bene-1"}, "deny": set()},
	"another": {"to": "bene-2", "context": {"looked_up_beneficiary": "bene-1"}, "deny": _not_looked_up("bene-1")},
	"nobody looked up": {"to": "bene-1", "context": {}, "deny": _not_looked_up(null)},
	"looked up to nothing": {"to": null, "context": {"looked_up_beneficiary": null}, "deny": _not_looked_up(null)},
	"looked up to an empty name": {"to": "", "context": {"looked_up_beneficiary": ""}, "deny": _not_looked_up("")},
	"looked up to no name": {"to": 7, "context": {"looked_up_beneficiary": 7}, "deny": _not_looked_up(7)},
}

test_beneficiary[name] if {
	some name, case in _cases
	context := object.union(case.context, {"arguments": {"beneficiary_id": case.to}})
	beneficiary.deny == case.deny with input as {"action": {"name": "initiate_wire"}, "context": context}
}

test_no_money_moves if {
	beneficiary.deny == set() with input as {"action": {"name": "validate_payment"}, "context": {}}
}

test_a_wire_to_nobody if {
	context := {"looked_up_beneficiary": "bene-1"}
	beneficiary.deny == _not_looked_up("bene-1") with input as {"action": {"name": "initiate_wire"}, "context": context}
}
