package custom.concerns.transitions_test

import data.custom.concerns.transitions

_memory := {
	"episodes": {"e-1": {"state": "open"}, "e-2": {"state": "archived"}},
	"propositions": {
		"p-1": {"state": "candidate"}, "p-2": {"state": "supported"}, "p-3": {"state": "contested"},
		"p-4": {"state": "consolidated"}, "p-5": {"state": "rejected"}, "p-6": {},
	},
	"tests": {"t-1": {"state": "open"}, "t-2": {"state": "closed"}},
}

_asked(action, arguments, memory) := {"action": {"name": action}, "context": {"arguments": arguments, "memory": memory}}

_forbidden(kind, id, state) := {{"kind": kind, "id": id, "state": state}}

_cases := {
	"an open episode": [["record_observation", "archive_episode"], {"episode_id": "e-1"}, set()],
	"an archived episode": [
		["record_observation", "archive_episode"],
		{"episode_id": "e-2"}, _forbidden("episodes", "e-2", "archived"),
	],
	"a candidate": [_on_propositions, {"proposition_id": "p-1"}, set()],
	"a supported proposition": [_on_propositions, {"proposition_id": "p-2"}, set()],
	"a contested one": [_on_propositions, {"proposition_id": "p-3"}, set()],
	"a consolidated one": [_on_propositions, {"proposition_id": "p-4"}, _forbidden("propositions", "p-4", "consolidated")],
	"a rejected one": [_on_propositions, {"proposition_id": "p-5"}, _forbidden("propositions", "p-5", "rejected")],
	"one without state": [_on_propositions, {"proposition_id": "p-6"}, _forbidden("propositions", "p-6", null)],
	"one that is not there": [_on_propositions, {"proposition_id": "p-9"}, _forbidden("propositions", "p-9", null)],
	"none named": [_on_propositions, {}, _forbidden("propositions", null, null)],
	"an open test": [["execute_test_result_ingest"], {"test_id": "t-1"}, set()],
	"a closed test": [["execute_test_result_ingest"], {"test_id": "t-2"}, _forbidden("tests", "t-2", "closed")],
	"something new": [["create_or_link_entity_candidate", "propose_proposition"], {}, set()],
}

_on_propositions := ["attach_support", "attach_contradiction", "propose_test", "request_consolidation"]

test_transitions[name] if {
	some name, [actions, arguments, expected] in _cases
	every action in actions {
		found := transitions.deny with input as _asked(action, arguments, _memory)
		{item.details | some item in found} == expected
		{item.code | some item in found} == {"transitions.forbidden" | some _ in expected}
	}
}

test_without_memory[name] if {
	some name, memory in {"null": null, "text": "p-1", "list": ["p-1"], "empty": {}, "kinds": {"propositions": ["p-1"]}}
	found := transitions.deny with input as _asked("attach_support", {"proposition_id": "p-1"}, memory)
	{item.details | some item in found} == _forbidden("propositions", "p-1", null)
}
