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
		"remedy": concat(" ", [
			"Ask for the missing scopes.",
			"A session has them in the claims `emts`, as {SCOPE: true}, or `scope`, as a text.",
		]),
	}}
}

# A name that only resembles the scope does not count, parts do not add up to it, and every scope is needed.
_lacking contains {"held": [name], "needed": ["payments.wire.initiate"], "missing": ["payments.wire.initiate"]} if {
	some name in fixture.near("payments.wire.initiate")
}

_lacking contains {"held": ["payments.wire.initiate"], "needed": [name], "missing": [name]} if {
	some name in fixture.near("payments.wire.initiate")
}

_lacking contains {"held": ["a", "b", "payments", "wire"], "needed": ["a,b", "a"], "missing": ["a,b"]}

_lacking contains {"held": ["a", "b", "payments", "wire"], "needed": ["payments.wire", "a"], "missing": ["payments.wire"]}

_lacking contains {"held": [scope | some scope in _many; not scope in lost], "needed": _many, "missing": lost} if {
	some lost in [["a"], ["b"], ["c"], ["d"], ["e"], ["a", "b"], ["c", "e"], ["a", "c", "d"], _many]
}

_many := ["a", "b", "c", "d", "e"]

test_lacking[name] if {
	some case in _lacking
	name := json.marshal(case)
	found := scopes.deny with data.manifests as fixture.manifests({"scopes": case.needed}, [])
		with input as fixture.changed([{"op": "replace", "path": "/subject/properties/scopes", "value": case.held}])

	fixture.brief(found) == {["scopes.missing", {"missing": case.missing}]}
}
