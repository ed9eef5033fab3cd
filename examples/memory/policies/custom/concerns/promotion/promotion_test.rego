package custom.concerns.promotion_test

import data.custom.concerns.promotion

_settings := {"memory": {"supports_to_consolidate": 2}}

_asked(action, proposition) := {
	"action": {"name": action},
	"context": {"arguments": {"proposition_id": "p-1"}, "memory": {"propositions": {"p-1": proposition}}},
}

_cases := {
	"enough": {"proposition": {"state": "supported", "supports": ["a", "b"]}, "deny": set()},
	"one": {"proposition": {"state": "supported", "supports": ["a"]}, "deny": {{"supports": 1, "needed": 2}}},
	"one twice": {"proposition": {"state": "supported", "supports": ["a", "a"]}, "deny": {{"supports": 1, "needed": 2}}},
	"none": {"proposition": {"state": "supported"}, "deny": {{"supports": 0, "needed": 2}}},
	"a text": {"proposition": {"state": "supported", "supports": "a, b"}, "deny": {{"supports": 0, "needed": 2}}},
}

test_consolidation[name] if {
	some name, case in _cases
	found := promotion.deny with input as _asked("request_consolidation", case.proposition) with data.settings as _settings
	{item.details | some item in found} == case.deny
	others := promotion.deny with input as _asked("attach_support", case.proposition) with data.settings as _settings
	others == set()
}

test_a_contested_proposition_is_tested_first if {
	contested := {"state": "contested", "supports": ["a", "b"]}
	found := promotion.obligations with input as _asked("request_consolidation", contested)
	found == {{"id": "transform", "on": "ALLOW", "parameters": {"tool": "propose_test"}}}
	others := promotion.obligations with input as _asked("propose_test", contested)
	others == set()
	sound := promotion.obligations with input as _asked("request_consolidation", {"state": "supported"})
	sound == set()
}

test_unset[name] if {
	some name, settings in {"nothing": {}, "text": {"memory": {"supports_to_consolidate": "2"}}}
	asked := _asked("request_consolidation", {"state": "supported", "supports": ["a", "b"]})
	found := promotion.deny with input as asked with data.settings as settings
	{item.code | some item in found} == {"promotion.not_supported"}
}
