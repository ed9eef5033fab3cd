package authz.lib.grant_test

import data.authz
import data.authz.lib.fixture_test as fixture
import data.authz.lib.grant

_grant := {
	"id": "gr-1",
	"reach": "run",
	"tool": "initiate_wire",
	"run_id": "run-1",
	"codes": ["approvals.required", "limits.exceeded", "limits.cumulative_exceeded"],
	"most": {"amount": 47500},
	"age_seconds": 300,
	"uses_left": 3,
	"grants": [{"sub": "ann", "iss": "a", "roles": ["payments.approver"]}],
}

_lasting := {"reaches": ["run"], "max_seconds": 86400, "uses": 20}

_entry(changes, lasting) := {
	"effect_class": "commit-low",
	"approval": object.union(fixture.entry.approval, object.union({"lasting": object.union(_lasting, lasting)}, changes)),
}

_request(changes) := fixture.changed([
	{"op": "add", "path": "/context/grant", "value": object.union(_grant, changes)},
	{"op": "add", "path": "/context/run_id", "value": "run-1"},
])

_required := {"code": "approvals.required", "details": {}}

_clears(item, changes, entry) if {
	grant.clears(item) with input as _request(changes)
		with data.manifests as fixture.manifests(entry, [])
}

_clearing := {
	"as granted": {"grant": {}, "entry": _entry({}, {})},
	"the last use": {"grant": {"uses_left": 1}, "entry": _entry({}, {})},
	"all uses": {"grant": {"uses_left": 20}, "entry": _entry({}, {})},
	"just made": {"grant": {"age_seconds": 0}, "entry": _entry({}, {})},
	"as old as it may be": {"grant": {"age_seconds": 86400}, "entry": _entry({}, {})},
	"until, of another run": {"grant": {"reach": "until", "run_id": "run-0"}, "entry": _entry({}, {"reaches": ["run", "until"]})},
	"by two people": {
		"grant": {"grants": [{"sub": name, "iss": "a", "roles": ["payments.approver"]} | some name in ["ann", "ben"]]},
		"entry": _entry({"quorum": 2}, {}),
	},
}

test_clears[name] if {
	some name, case in _clearing
	_clears(_required, case.grant, case.entry)
}

_kept := {
	"another code": {"codes": ["flow.egress"]},
	"a code that begins alike": {"codes": ["approvals.required.x"]},
	"codes as a text": {"codes": "approvals.required"},
	"no codes": {"codes": null},
	"another tool": {"tool": "read_page"},
	"another run": {"run_id": "run-2"},
	"no run": {"run_id": null},
	"an empty run": {"run_id": ""},
	"a reach that is not offered": {"reach": "until"},
	"an unknown reach": {"reach": "ever"},
	"too old": {"age_seconds": 86401},
	"from the future": {"age_seconds": -1},
	"an age as a text": {"age_seconds": "300"},
	"no uses left": {"uses_left": 0},
	"more uses than the entry allows": {"uses_left": 21},
	"uses as a text": {"uses_left": "3"},
	"no id": {"id": ""},
	"by nobody": {"grants": []},
	"grants as a text": {"grants": "ann"},
	"by somebody without the role": {"grants": [{"sub": "ann", "iss": "a", "roles": ["clerk"]}]},
	"by the subject": {"grants": [{"sub": "officer-123", "roles": ["payments.approver"]}]},
}

test_does_not_clear[name] if {
	some name, changes in _kept
	not _clears(_required, changes, _entry({}, {}))
}

_entries := {
	"commit-high": object.union(_entry({}, {}), {"effect_class": "commit-high"}),
	"no effect class": object.union(_entry({}, {}), {"effect_class": null}),
	"an unknown effect class": object.union(_entry({}, {}), {"effect_class": "commit"}),
	"no lasting grants": {"effect_class": "commit-low"},
	"lasting grants until a time only": _entry({}, {"reaches": ["until"]}),
	"a shorter life": _entry({}, {"max_seconds": 299}),
	"no life": _entry({}, {"max_seconds": null}),
	"fewer uses": _entry({}, {"uses": 2}),
	"a larger quorum": _entry({"quorum": 2}, {}),
	"other approvers": _entry({"approvers": ["treasurer"]}, {}),
	"no approvers": _entry({"approvers": []}, {}),
}

test_does_not_clear_for_an_entry_with[name] if {
	some name, entry in _entries
	not _clears(_required, {}, entry)
}

test_without_a_grant if {
	every value in [null, {}, [], "gr-1"] {
		request := fixture.changed([{"op": "add", "path": "/context/grant", "value": value}])
		not grant.clears(_required) with input as request with data.manifests as fixture.manifests(_entry({}, {}), [])
	}
}

_limit(code, value) := {"code": code, "details": {"argument": "amount", "value": value}}

test_limits_are_cleared_up_to_the_amount_that_people_saw if {
	_clears(_limit("limits.exceeded", 47500), {}, _entry({}, {}))
	_clears(_limit("limits.exceeded", 1), {}, _entry({}, {}))
	not _clears(_limit("limits.exceeded", 47501), {}, _entry({}, {}))
	not _clears(_limit("limits.exceeded", "1"), {}, _entry({}, {}))
	not _clears(_limit("limits.exceeded", 1), {"most": null}, _entry({}, {}))
	not _clears(_limit("limits.cumulative_exceeded", 1), {}, _entry({}, {}))
}

_flow := ["flow.egress", "flow.link_untrusted", "flow.aimless"]

test_flow_is_cleared_as_far_as_people_saw_it if {
	egress := {"code": "flow.egress", "details": {"markings": ["account", "mail"]}}
	_clears(egress, {"codes": _flow, "markings": ["account", "diary", "mail"]}, _entry({}, {}))
	not _clears(egress, {"codes": _flow, "markings": ["mail"]}, _entry({}, {}))
	not _clears(egress, {"codes": _flow}, _entry({}, {}))
	link := {"code": "flow.link_untrusted", "details": {"argument": "/text/0/line"}}
	_clears(link, {"codes": _flow}, _entry({}, {"free": ["/texts", "/note"]}))
	not _clears(link, {"codes": _flow}, _entry({}, {"free": ["/note", "/text"]}))
	not _clears({"code": "flow.link_untrusted", "details": {}}, {"codes": _flow}, _entry({}, {}))
	_clears({"code": "flow.aimless", "details": {}}, {"codes": _flow}, _entry({}, {}))
}

# The decision: a grant clears the codes that people saw, and leaves every other step-up and every denial.
_decided(amount, codes, scopes) := decision if {
	request := json.patch(_request({"codes": codes}), [
		{"op": "replace", "path": "/context/arguments/amount", "value": amount},
		{"op": "replace", "path": "/subject/properties/scopes", "value": scopes},
	])
	decision := authz.decision with input as request
		with data.manifests as fixture.manifests(_entry({}, {}), [])
		with data.config as {"required_concerns": []}
}

test_decision_with_a_grant if {
	scopes := fixture.request.subject.properties.scopes
	_decided(47500, ["limits.exceeded"], scopes).verdict == "ALLOW"
	_decided(47501, ["limits.exceeded"], scopes).verdict == "STEP_UP"
	_decided(47500, ["approvals.required"], scopes).verdict == "STEP_UP"
	_decided(47500, ["limits.exceeded"], []).verdict == "DENY"
}
