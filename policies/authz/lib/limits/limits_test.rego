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

# However little above, and however far.
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

# A small limit is one, and so is none at all.
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

# No other limit stands in for the one that the entry names, neither the subject's nor an agent's.
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

# Whichever of four agents it is whose limit is exceeded.
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
