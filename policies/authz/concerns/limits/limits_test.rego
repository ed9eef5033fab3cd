package authz.concerns.limits_test

import data.authz.concerns.limits
import data.authz.lib.fixture_test as fixture

_amount(value) := {"op": "replace", "path": "/context/arguments/amount", "value": value}

_act(limits) := {
	"op": "replace",
	"path": "/subject/properties/act",
	"value": object.union({"sub": "agent:payments", "scopes": []}, limits),
}

_exceeded(value, held) := {["limits.exceeded", {
	"limit": "wire.auto_approved",
	"argument": "amount",
	"value": value,
	"held": held,
	"approval": fixture.entry.approval,
}]}

_invalid := {["limits.invalid", {"limit": "wire.auto_approved", "argument": "amount"}]}

_cases := {
	"below": {"patch": [_amount(24999.99)], "step_up": set(), "deny": set()},
	"equal is kept": {"patch": [_amount(25000)], "step_up": set(), "deny": set()},
	"above": {"patch": [_amount(25000.01)], "step_up": _exceeded(25000.01, 25000), "deny": set()},
	"zero": {"patch": [_amount(0)], "step_up": set(), "deny": set()},
	"negative": {"patch": [_amount(-0.01)], "step_up": set(), "deny": _invalid},
	"a string": {"patch": [_amount("20000")], "step_up": set(), "deny": _invalid},
	"a boolean": {"patch": [_amount(true)], "step_up": set(), "deny": _invalid},
	"null": {"patch": [_amount(null)], "step_up": set(), "deny": _invalid},
	"absent": {
		"patch": [{"op": "remove", "path": "/context/arguments/amount"}],
		"step_up": set(), "deny": _invalid,
	},
	"no arguments": {"patch": [{"op": "remove", "path": "/context/arguments"}], "step_up": set(), "deny": _invalid},
	"a subject without the limit approves nothing by itself": {
		"patch": [{"op": "replace", "path": "/subject/properties/limits", "value": {"other": 1000000}}],
		"step_up": _exceeded(20000, null), "deny": set(),
	},
	"a subject without any limits": {
		"patch": [{"op": "remove", "path": "/subject/properties/limits"}],
		"step_up": _exceeded(20000, null), "deny": set(),
	},
	"an agent that states no limits has the subject's": {"patch": [_act({})], "step_up": set(), "deny": set()},
	"an agent with a lower limit": {
		"patch": [_act({"limits": {"wire.auto_approved": 19999}})],
		"step_up": _exceeded(20000, 19999), "deny": set(),
	},
	"an agent's higher limit adds nothing": {
		"patch": [_amount(30000), _act({"limits": {"wire.auto_approved": 50000}})],
		"step_up": _exceeded(30000, 25000), "deny": set(),
	},
	"an agent that states others": {
		"patch": [_act({"limits": {"other": 50000}})],
		"step_up": _exceeded(20000, null), "deny": set(),
	},
	"the agent's agent counts as well": {
		"patch": [_act({"act": {"sub": "agent:inner", "limits": {"wire.auto_approved": 1}}})],
		"step_up": _exceeded(20000, 1), "deny": set(),
	},
}

test_limits[name] if {
	some name, case in _cases
	found := limits with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(found.step_up) == case.step_up
	fixture.brief(found.deny) == case.deny
}

# Each limit has its own finding: one is kept, one is exceeded, and one has no argument.
test_each_limit_counts if {
	found := limits with input as fixture.request with data.manifests as fixture.manifests(
		{"limits": [
			{"limit": "wire.auto_approved", "argument": "amount"},
			{"limit": "wire.daily", "argument": "amount"},
			{"limit": "wire.fee", "argument": "fee"},
		]},
		[],
	)

	fixture.brief(found.step_up) == {["limits.exceeded", {
		"limit": "wire.daily",
		"argument": "amount",
		"value": 20000,
		"held": null,
		"approval": fixture.entry.approval,
	}]}
	fixture.brief(found.deny) == {["limits.invalid", {"limit": "wire.fee", "argument": "fee"}]}
}

_daily := fixture.manifests({"limits": [fixture.daily]}, [])

_held := {"op": "add", "path": "/subject/properties/limits/wire.daily", "value": 50000}

_sum(used, patch) := answer if {
	answer := {
		"step_up": fixture.brief(limits.step_up),
		"deny": fixture.brief(limits.deny),
		"obligations": limits.obligations,
	} with input as fixture.changed(array.concat([_held, fixture.spent([fixture.shown(used, 20000)])], patch))
		with data.manifests as _daily
}

_reserved(cap) := {{"id": "reserve", "on": "ALLOW", "parameters": {"limit": "wire.daily", "amount": 20000, "cap": cap, "window": "PT24H"}}}

_overspent := {["limits.cumulative_exceeded", {
	"limit": "wire.daily",
	"used": 30001,
	"amount": 20000,
	"held": 50000,
	"window_ends": "2026-07-02T00:00:00Z",
	"approval": fixture.entry.approval,
}]}

test_a_sum_that_is_kept_is_reserved if {
	_sum(30000, []) == {"step_up": set(), "deny": set(), "obligations": _reserved(50000)}
}

test_a_sum_that_is_passed_asks if {
	_sum(30001, []) == {"step_up": _overspent, "deny": set(), "obligations": _reserved(50000)}
}

test_an_approved_call_has_no_cap if {
	_sum(30001, [fixture.digested, fixture.approved]) == {"step_up": _overspent, "deny": set(), "obligations": _reserved(null)}
}

test_a_limit_of_the_run_has_no_window if {
	limit := {"limit": "wire.daily", "count": true, "per": "run"}
	found := limits.obligations with input as fixture.changed([_held, fixture.spent([fixture.shown(0, 1)])])
		with data.manifests as fixture.manifests({"limits": [limit]}, [])

	found == {{"id": "reserve", "on": "ALLOW", "parameters": {"limit": "wire.daily", "amount": 1, "cap": 50000, "window": null}}}
}

test_a_sum_that_cannot_be_counted_is_denied if {
	found := limits with input as fixture.changed([_held, fixture.spent([{"limit": "wire.daily", "problem": "a fraction"}])])
		with data.manifests as _daily

	fixture.brief(found.deny) == {["limits.invalid", {"limit": "wire.daily", "problem": "a fraction"}]}
	found.obligations == set()
}
