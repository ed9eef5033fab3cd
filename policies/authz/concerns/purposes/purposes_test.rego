package authz.concerns.purposes_test

import data.authz.concerns.purposes
import data.authz.lib.fixture_test as fixture

_for(purpose) := [{"op": "replace", "path": "/context/purpose", "value": purpose}]

_cases := {
	"none named, none stated": {"patch": [], "entry": {}, "deny": set()},
	"none named, any stated": {"patch": _for("payments.supplier"), "entry": {}, "deny": set()},
	"named and stated": {
		"patch": _for("payments.supplier"),
		"entry": {"purposes": ["payments.supplier"]},
		"deny": set(),
	},
	"another one stated": {
		"patch": _for("marketing"),
		"entry": {"purposes": ["payments.supplier"]},
		"deny": {["purposes.not_allowed", {"purpose": "marketing", "admitted": ["payments.supplier"]}]},
	},
	"named, none stated": {
		"patch": [],
		"entry": {"purposes": ["payments.supplier"]},
		"deny": {["purposes.missing", {"admitted": ["payments.supplier"]}]},
	},
	"an empty one is none": {
		"patch": _for(""),
		"entry": {"purposes": ["payments.supplier"]},
		"deny": {["purposes.missing", {"admitted": ["payments.supplier"]}]},
	},
	"nobody may use it": {
		"patch": _for("payments.supplier"),
		"entry": {"purposes": []},
		"deny": {["purposes.not_allowed", {"purpose": "payments.supplier", "admitted": []}]},
	},
	"an external read needs one": {
		"patch": [],
		"entry": {"effect_class": "read-external"},
		"deny": {["purposes.missing", {"admitted": null}]},
	},
	"an external read for any purpose": {
		"patch": _for("payments.supplier"),
		"entry": {"effect_class": "read-external"},
		"deny": set(),
	},
}

test_purposes[name] if {
	some name, case in _cases
	found := purposes.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}

test_near_a_purpose if {
	every name in fixture.near("payments.supplier") {
		found := purposes.deny with input as fixture.changed(_for(name))
			with data.manifests as fixture.manifests({"purposes": ["payments.supplier", "payments.refund"]}, [])

		fixture.brief(found) == {["purposes.not_allowed", {"purpose": name, "admitted": ["payments.supplier", "payments.refund"]}]}
	}
}
