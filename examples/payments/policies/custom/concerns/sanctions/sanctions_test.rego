package custom.concerns.sanctions_test

import data.custom.concerns.sanctions

_not_clear(status) := {{
	"code": "sanctions.not_clear",
	"message": "The beneficiary's sanctions screening is missing or not clear.",
	"details": {"status": status},
}}

_cases := {
	"clear": {"action": "initiate_wire", "context": {"sanctions_status": "clear"}, "deny": set()},
	"a hit": {"action": "initiate_wire", "context": {"sanctions_status": "hit"}, "deny": _not_clear("hit")},
	"never screened": {"action": "initiate_wire", "context": {}, "deny": _not_clear(null)},
	"not a text": {"action": "initiate_wire", "context": {"sanctions_status": true}, "deny": _not_clear(true)},
	"no money moves": {"action": "lookup_beneficiary", "context": {}, "deny": set()},
}

test_sanctions[name] if {
	some name, case in _cases
	sanctions.deny == case.deny with input as {"action": {"name": case.action}, "context": case.context}
}
