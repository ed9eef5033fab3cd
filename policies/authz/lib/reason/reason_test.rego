package authz.lib.reason_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.reason

test_a_forgotten_annotation_still_yields_a_reason if {
	reason.new({}, {"k": 1}) == {"code": "reason.unnamed", "message": "", "details": {"k": 1}}
}

_well := {"code": "limits.exceeded", "message": "", "details": {}}

_remedied := object.union(_well, {"remedy": "Ask the desk."})

test_a_remedy_is_stated_or_absent[remedy] if {
	some remedy in ["Ask the desk.", "", 1, null, ["Ask the desk."]]
	reason.new({"description": "", "custom": {"code": "limits.exceeded", "remedy": remedy}}, {}) == _expected(remedy)
}

_expected(remedy) := object.union(_well, {"remedy": remedy}) if is_string(remedy)

_expected(remedy) := _well if not is_string(remedy)

_malformed := {
	"another concern's": object.union(_well, {"code": "scopes.missing"}),
	"a prefix only": object.union(_well, {"code": "limitsexceeded"}),
	"no code": object.remove(_well, ["code"]),
	"code not a string": object.union(_well, {"code": 1}),
	"message not a string": object.union(_well, {"message": null}),
	"details not an object": object.union(_well, {"details": []}),
	"more than its fields": object.union(_well, {"hint": ""}),
	"more than its fields and a remedy": object.union(_remedied, {"hint": ""}),
	"remedy not a string": object.union(_well, {"remedy": 1}),
	"a remedy and no message": object.remove(_remedied, ["message"]),
	"not an object": "limits.exceeded",
}

test_well_formed[text] if {
	some text, found in {"without remedy": _well, "with remedy": _remedied}
	reason.well_formed(found, "limits")
}

test_malformed[name] if {
	some name, found in _malformed
	not reason.well_formed(found, "limits")
}

test_near_the_concern if {
	# A code may have any number of parts.
	every name in fixture.near("limits") - {"limits.x"} {
		not reason.well_formed(object.union(_well, {"code": sprintf("%s.exceeded", [name])}), "limits")
	}
}
