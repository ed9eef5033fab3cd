package authz.concerns.approvals_test

import data.authz.concerns.approvals
import data.authz.lib.fixture_test as fixture

_amount(value) := [{"op": "replace", "path": "/context/arguments/amount", "value": value}]

_required(approval) := {["approvals.required", {"approval": approval}]}

_unless(value) := object.union(fixture.entry.approval, {"unless_within_limits": value})

_cases := {
	"high tier within its limits": {"patch": [], "entry": {}, "step_up": set()},
	"high tier above them: the limit says so already": {"patch": _amount(47500), "entry": {}, "step_up": set()},
	"high tier without limits": {
		"patch": [], "entry": {"limits": []},
		"step_up": _required(fixture.entry.approval),
	},
	"high tier whose limits excuse nothing": {
		"patch": [], "entry": {"approval": _unless(false)},
		"step_up": _required(_unless(false)),
	},
	"only true excuses": {
		"patch": [], "entry": {"approval": _unless("yes")},
		"step_up": _required(_unless("yes")),
	},
	"a limited argument that is invalid excuses nothing": {
		"patch": _amount("20000"), "entry": {},
		"step_up": _required(fixture.entry.approval),
	},
	"what a sum asks for is not asked twice": {
		"patch": [fixture.spent([fixture.shown(1, 1)])], "entry": {"limits": [fixture.daily]}, "step_up": set(),
	},
	"medium tier": {"patch": [], "entry": {"risk_tier": "medium", "limits": []}, "step_up": set()},
	"low tier": {"patch": [], "entry": {"risk_tier": "low", "limits": []}, "step_up": set()},
	"a tier nobody knows": {
		"patch": [], "entry": {"risk_tier": "extreme", "limits": []},
		"step_up": _required(fixture.entry.approval),
	},
	"commit-high of a low tier": {
		"patch": [], "entry": {"risk_tier": "low", "effect_class": "commit-high", "limits": []},
		"step_up": _required(fixture.entry.approval),
	},
	"commit-low of a low tier": {
		"patch": [], "entry": {"risk_tier": "low", "effect_class": "commit-low", "limits": []},
		"step_up": set(),
	},
}

test_required[name] if {
	some name, case in _cases
	found := approvals with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found.step_up) == case.step_up
	found.deny == set()
}

# A field that is missing in the entry never removes the need for an approval.
test_required_without[name] if {
	some name in ["approval", "risk_tier"]
	found := approvals.step_up with input as fixture.request
		with data.manifests as fixture.manifests({"limits": []}, [name])

	fixture.brief(found) == _required(object.get(object.remove(fixture.entry, [name]), "approval", {}))
}

_approvals := {
	"none": {"patch": [fixture.digested], "deny": set()},
	"of this call": {"patch": [fixture.approved, fixture.digested], "deny": set()},
	"of another call": {
		"patch": [fixture.approved, {"op": "add", "path": "/context/call_digest", "value": "sha256:other"}],
		"deny": {["approvals.invalid", {"approval": fixture.entry.approval}]},
	},
	"that says nothing": {
		"patch": [{"op": "replace", "path": "/context/approval", "value": {}}],
		"deny": {["approvals.invalid", {"approval": fixture.entry.approval}]},
	},
}

test_approvals[name] if {
	some name, case in _approvals
	found := approvals.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(found) == case.deny
}

# A tool that is unknown, or whose entry does not mention approvals, is still denied.
test_invalid_without_an_entry if {
	every manifests in [{}, fixture.manifests({}, ["approval"])] {
		found := approvals.deny with input as fixture.changed([{"op": "replace", "path": "/context/approval", "value": {}}])
			with data.manifests as manifests

		fixture.brief(found) == {["approvals.invalid", {"approval": {}}]}
	}
}

# This concern still asks for the approval; the decision clears it.
test_a_valid_approval_is_still_required if {
	found := approvals.step_up with input as fixture.changed([fixture.approved, fixture.digested])
		with data.manifests as fixture.manifests({"limits": []}, [])

	fixture.brief(found) == _required(fixture.entry.approval)
}

# A misspelt tier does not count as a lower tier, and a value that is almost true does not excuse the call.
test_near_a_lower_tier[name] if {
	some tier in ["low", "medium"]
	some name in fixture.near(tier)
	found := approvals.step_up with input as fixture.request
		with data.manifests as fixture.manifests({"limits": [], "risk_tier": name}, [])

	fixture.brief(found) == _required(fixture.entry.approval)
}

test_only_true_excuses[name] if {
	some value in ["true", "no", "", 1, 0, null, [], {}, [true]]
	name := json.marshal(value)
	found := approvals.step_up with input as fixture.request
		with data.manifests as fixture.manifests({"approval": _unless(value)}, [])

	fixture.brief(found) == _required(_unless(value))
}

test_whatever_is_an_approval_has_to_hold[name] if {
	some value in [{"id": ""}, {"id": null}, {"id": "apr-1"}, {"grants": []}, {"x": 1}]
	name := json.marshal(value)
	found := approvals.deny with input as fixture.changed([{"op": "replace", "path": "/context/approval", "value": value}])
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(found) == {["approvals.invalid", {"approval": fixture.entry.approval}]}
}
