package authz.concerns.markings_test

import data.authz.concerns.markings
import data.authz.lib.fixture_test as fixture

_marked(values) := {"op": "add", "path": "/resource/properties/markings", "value": values}

_cleared(values) := {"op": "replace", "path": "/subject/properties/clearances", "value": values}

_cases := {
	"an unmarked resource": {"patch": [_marked([])], "entry": {"markings": ["pii.medium"]}, "deny": set()},
	"cleared, and the tool may touch it": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {"markings": ["pii.medium"]},
		"deny": set(),
	},
	"not cleared": {
		"patch": [_marked(["pii.medium", "regulated"]), _cleared(["pii.medium"])],
		"entry": {"markings": ["pii.medium", "regulated"]},
		"deny": {["markings.not_cleared", {"missing": ["regulated"]}]},
	},
	"cleared, but the tool may not touch it": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {"markings": []},
		"deny": {["markings.not_allowed", {"markings": ["pii.medium"]}]},
	},
	"a tool that declares no markings touches unmarked data only": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {},
		"deny": {["markings.not_allowed", {"markings": ["pii.medium"]}]},
	},
	"unknown markings count as all that the tool may touch": {
		"patch": [_cleared(["pii.medium"])],
		"entry": {"markings": ["pii.high", "pii.medium"]},
		"deny": {["markings.not_cleared", {"missing": ["pii.high"]}]},
	},
	"a subject without the attribute is cleared for nothing": {
		"patch": [{"op": "remove", "path": "/subject/properties/clearances"}],
		"entry": {"markings": ["pii.medium"]},
		"deny": {["markings.not_cleared", {"missing": ["pii.medium"]}]},
	},
}

test_markings[name] if {
	some name, case in _cases
	found := markings.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}
