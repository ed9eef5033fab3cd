package authz.concerns.idempotency_test

import data.authz.concerns.idempotency
import data.authz.lib.fixture_test as fixture

_key(value) := [{"op": "replace", "path": "/context/idempotency_key", "value": value}]

_missing := {["idempotency.key_missing", {}]}

_cases := {
	"there": {"patch": [], "entry": {}, "deny": set()},
	"absent": {
		"patch": [{"op": "remove", "path": "/context/idempotency_key"}],
		"entry": {}, "deny": _missing,
	},
	"null": {"patch": _key(null), "entry": {}, "deny": _missing},
	"empty": {"patch": _key(""), "entry": {}, "deny": _missing},
	"not required": {"patch": _key(null), "entry": {"idempotency": {"required": false}}, "deny": set()},
}

test_idempotency[name] if {
	some name, case in _cases
	found := idempotency.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}
