package authz.lib.limits_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.limits

_amount(value) := {"op": "replace", "path": "/context/arguments/amount", "value": value}

_own(value) := {"op": "replace", "path": "/subject/properties/limits", "value": value}

_act(value) := {"op": "replace", "path": "/subject/properties/act", "value": value}

_entry := fixture.manifests({}, [])

_exceeded(patch, manifests) := {finding.limit | some finding in findings} if {
	findings := limits.exceeded with input as fixture.changed(patch) with data.manifests as manifests
}

# Small and large excesses both count.
test_above[amount] if {
	some amount in [25000.0001, 25000.0005, 25000.009, 25000.4, 25000.5, 25001, 25020, 100000, 1000000, 2000001, 1025000, 9007199254740991]
	_exceeded([_amount(amount)], _entry) == {"wire.auto_approved"}
}

test_not_above[amount] if {
	some amount in [0, 0.0001, 3, 9, 99.99, 3000, 24999.9999, 25000]
	_exceeded([_amount(amount)], _entry) == set()
	limits.all_kept with input as fixture.changed([_amount(amount)]) with data.manifests as _entry
}

test_a_limit_with_a_fraction if {
	_exceeded([_amount(24999.51), _own({"wire.auto_approved": 24999.5})], _entry) == {"wire.auto_approved"}
	_exceeded([_amount(25000), _own({"wire.auto_approved": 24999.5})], _entry) == {"wire.auto_approved"}
	_exceeded([_amount(24999.5), _own({"wire.auto_approved": 24999.5})], _entry) == set()
}

# A small limit counts, and so does a limit of zero.
test_small_limits[limit] if {
	some limit in [0, 0.005, 1, 50]
	_exceeded([_amount(limit + 0.001), _own({"wire.auto_approved": limit})], _entry) == {"wire.auto_approved"}
}

test_slightly_below_zero[amount] if {
	some amount in [-0.0001, -0.0005, -0.01, -1]
	invalid := limits.invalid with input as fixture.changed([_amount(amount)]) with data.manifests as _entry
	{limit.limit | some limit in invalid} == {"wire.auto_approved"}
	not limits.all_kept with input as fixture.changed([_amount(amount)]) with data.manifests as _entry
}

# No other limit of the subject or of an agent replaces the one that the entry names.
test_near_the_limits_name if {
	every name in fixture.near("wire.auto_approved") {
		_exceeded([_own({name: 1000000})], _entry) == {"wire.auto_approved"}
		_exceeded([_act({"sub": "a", "limits": {name: 1000000}})], _entry) == {"wire.auto_approved"}
		_exceeded([_act({"sub": "a", "limits": {name: 1000000, "wire.auto_approved": 1}})], _entry) == {"wire.auto_approved"}
	}
}

test_each_of_many_limits[name] if {
	some last in [1, 2, 3, 9]
	before := [{"limit": "wire.auto_approved", "argument": "amount"} | some _ in numbers.range(1, last)]
	some finding in [{"limit": "wire.daily", "argument": "amount"}, {"limit": "wire.fee", "argument": "fee"}]
	name := sprintf("%s after %d", [finding.limit, last])
	manifests := fixture.manifests({"limits": array.concat(before, [finding])}, [])
	invalid := limits.invalid with input as fixture.request with data.manifests as manifests
	_exceeded([], manifests) | {limit.limit | some limit in invalid} == {finding.limit}
	not limits.all_kept with input as fixture.request with data.manifests as manifests
}

# The limits of each of the four agents count.
test_each_of_four_agents[number] if {
	some number in [1, 2, 3, 4]
	agents := [{"sub": sprintf("agent:%d", [n]), "limits": {"wire.auto_approved": limit}} |
		some n in [1, 2, 3, 4]
		limit := [30000, 1][count({true | n == number})]
	]
	third := object.union(agents[2], {"act": agents[3]})
	second := object.union(agents[1], {"act": third})
	_exceeded([_act(object.union(agents[0], {"act": second}))], _entry) == {"wire.auto_approved"}
}

_daily := fixture.manifests({"limits": [fixture.daily]}, [])

_held(limit) := {"op": "add", "path": "/subject/properties/limits/wire.daily", "value": limit}

_sums(patch, manifests) := answer if {
	answer := {
		"over": {[spent.limit, spent.held] | some spent in limits.overspent},
		"invalid": {[fault.limit, fault.problem] | some fault in limits.invalid},
		"kept": {true | limits.all_kept},
	} with input as fixture.changed(patch)
		with data.manifests as manifests
}

_kept := {"over": set(), "invalid": set(), "kept": {true}}

_over(held) := {"over": {["wire.daily", held]}, "invalid": set(), "kept": set()}

_uncounted(problem) := {"over": set(), "invalid": {["wire.daily", problem]}, "kept": set()}

_unsaid := "the request does not say what is spent"

# The amount spent before, the amount of the call, and the amount that the subject may spend.
_sum_cases := {
	"nothing is spent": {"sum": [0, 20000], "held": 50000, "answer": _kept},
	"all of it fits exactly": {"sum": [30000, 20000], "held": 50000, "answer": _kept},
	"the smallest unit too much": {"sum": [30000, 20000.01], "held": 50000, "answer": _over(50000)},
	"nothing is left": {"sum": [50000, 1], "held": 50000, "answer": _over(50000)},
	"nothing is left, even for less than one": {"sum": [50000, 0.5], "held": 50000, "answer": _over(50000)},
	"a call of nothing passes no sum": {"sum": [60000, 0], "held": 50000, "answer": _kept},
	"a call of nothing needs a limit all the same": {"sum": [0, 0], "held": null, "answer": _over(null)},
	"a limit of zero": {"sum": [0, 1], "held": 0, "answer": _over(0)},
	"a limit of zero lets nothing through, and nothing is what it is": {"sum": [0, 0], "held": 0, "answer": _kept},
	"a subject without the limit": {"sum": [0, 1], "held": null, "answer": _over(null)},
}

test_sums[name] if {
	some name, case in _sum_cases
	held := [_held(case.held) | case.held != null]
	spent := fixture.spent([fixture.shown(case.sum[0], case.sum[1])])
	_sums(array.concat(held, [spent]), _daily) == case.answer
}

# The argument itself does not matter here: the sum may cover several arguments, or be a count.
test_a_sum_is_what_the_enforcement_point_says[name] if {
	some name, limit in {"a count": {"limit": "wire.daily", "count": true, "per": "run"}, "of another argument": object.union(fixture.daily, {"argument": "fee"})}
	manifests := fixture.manifests({"limits": [limit]}, [])
	_sums([_held(5), fixture.spent([fixture.shown(4, 1)])], manifests) == _kept
	_sums([_held(5), fixture.spent([fixture.shown(5, 1)])], manifests) == _over(5)
}

test_an_agent_has_a_sum_of_its_own[name] if {
	some name, case in {"lower": {"limits": {"wire.daily": 10}, "held": 10}, "none": {"limits": {"other": 10}, "held": null}}
	patch := [_held(50000), _act({"sub": "a", "limits": case.limits}), fixture.spent([fixture.shown(0, 11)])]
	_sums(patch, _daily) == _over(case.held)
}

test_what_is_not_said_is_not_kept[name] if {
	some name, entries in {
		"nothing": [],
		"another limit": [object.union(fixture.shown(0, 1), {"limit": "wire.daily.x"})],
		"two sums": [fixture.shown(0, 1), fixture.shown(1, 1)],
	}
	answer := _sums([_held(50000), fixture.spent(entries)], _daily)
	answer.invalid == {["wire.daily", _unsaid]}
	answer.kept == set()
}

test_no_spent_at_all if _sums([_held(50000)], _daily) == _uncounted(_unsaid)

test_a_call_that_cannot_be_counted if {
	_sums([_held(50000), fixture.spent([{"limit": "wire.daily", "problem": "a fraction"}])], _daily) == _uncounted("a fraction")
}

# Each limit counts separately: one of the call and two sums, one of which is exceeded.
test_each_of_several_sums if {
	manifests := fixture.manifests(
		{"limits": array.concat(fixture.entry.limits, [
			fixture.daily,
			{"limit": "wire.count", "count": true, "per": "agent", "window": "PT1H"},
		])},
		[],
	)
	count := {"limit": "wire.count", "used": 3, "amount": 1, "total": 4, "window_ends": null}
	limits := [_held(50000), {"op": "add", "path": "/subject/properties/limits/wire.count", "value": 3}]
	answer := _sums(array.concat(limits, [fixture.spent([fixture.shown(0, 20000), count])]), manifests)
	answer == {"over": {["wire.count", 3]}, "invalid": set(), "kept": set()}
}
