package authz.concerns.scopes_test

import data.authz.concerns.scopes
import data.authz.lib.fixture_test as fixture

_cases := {
	"held": {"patch": [], "entry": {}, "deny": set()},
	"one of two is missing": {
		"patch": [],
		"entry": {"scopes": ["payments.audit", "payments.wire.initiate"]},
		"deny": {["scopes.missing", {"missing": ["payments.audit"]}]},
	},
	"none held": {
		"patch": [{"op": "replace", "path": "/subject/properties/scopes", "value": []}],
		"entry": {},
		"deny": {["scopes.missing", {"missing": ["payments.wire.initiate"]}]},
	},
	"a subject without the attribute holds none": {
		"patch": [{"op": "remove", "path": "/subject/properties/scopes"}],
		"entry": {},
		"deny": {["scopes.missing", {"missing": ["payments.wire.initiate"]}]},
	},
	"none needed": {"patch": [], "entry": {"scopes": []}, "deny": set()},
}

test_scopes[name] if {
	some name, case in _cases
	found := scopes.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}

test_shape if {
	found := scopes.deny with input as fixture.changed([{"op": "remove", "path": "/subject/properties/scopes"}])
		with data.manifests as fixture.manifests({}, [])

	found == {{
		"code": "scopes.missing",
		"message": "The subject does not hold every scope that the tool needs.",
		"details": {"missing": ["payments.wire.initiate"]},
	}}
}
