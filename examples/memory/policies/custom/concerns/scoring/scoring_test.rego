package custom.concerns.scoring_test

import data.custom.concerns.scoring

_settings := {"memory": {"ceilings": [0.6, 0.8]}}

_proposed(confidence, sources) := {
	"action": {"name": "propose_proposition"},
	"context": {"arguments": {"confidence": confidence, "source_ids": sources}},
}

_lowered(confidence) := {{"id": "transform", "on": "ALLOW", "parameters": {"set": {"confidence": confidence}}}}

_cases := {
	"as sure as one source bears": {"asked": _proposed(0.6, ["a"]), "obligations": set()},
	"surer than one source bears": {"asked": _proposed(0.61, ["a"]), "obligations": _lowered(0.6)},
	"as sure as two bear": {"asked": _proposed(0.8, ["a", "b"]), "obligations": set()},
	"surer than two bear": {"asked": _proposed(1, ["a", "b"]), "obligations": _lowered(0.8)},
	"one source named twice": {"asked": _proposed(0.8, ["a", "a"]), "obligations": _lowered(0.6)},
	"more sources than ceilings": {"asked": _proposed(1, ["a", "b", "c"]), "obligations": _lowered(0.8)},
	"another tool": {
		"asked": object.union(_proposed(1, ["a"]), {"action": {"name": "attach_support"}}),
		"obligations": set(),
	},
}

test_scoring[name] if {
	some name, case in _cases
	scoring.obligations == case.obligations with input as case.asked with data.settings as _settings
	scoring.deny == set() with input as case.asked with data.settings as _settings
}

_unset := {
	"no settings": {},
	"no ceilings": {"memory": {}},
	"an empty list": {"memory": {"ceilings": []}},
	"a text": {"memory": {"ceilings": ["high"]}},
}

test_unset[name] if {
	some name, settings in _unset
	found := scoring.deny with input as _proposed(0.1, ["a"]) with data.settings as settings
	{item.code | some item in found} == {"scoring.unset"}
}

test_no_source if {
	found := scoring.deny with input as _proposed(0.1, []) with data.settings as _settings
	{item.code | some item in found} == {"scoring.unset"}
}
