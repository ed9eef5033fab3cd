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

# Other fields of the call do not replace the key.
test_nothing_stands_in_for_a_key[name] if {
	some name, patch in {"absent": [{"op": "remove", "path": "/context/idempotency_key"}], "null": _key(null), "empty": _key("")}
	others := [{"op": "add", "path": sprintf("/context/%s", [field]), "value": "idm-1"} |
		some field in ["agent", "call_digest", "purpose", "request_id", "run_id", "time", "key", "idempotency"]
	]
	argument := {"op": "add", "path": "/context/arguments/idempotency_key", "value": "idm-1"}
	found := idempotency.deny with input as fixture.changed(array.concat(array.concat(patch, others), [argument]))
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(found) == _missing
}
