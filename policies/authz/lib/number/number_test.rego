package authz.lib.number_test

import data.authz.lib.number

test_at_most if {
	number.at_most(1, 2)
	number.at_most(2, 2)
	not number.at_most(2.01, 2)
}

# Each of these holds in Rego's order of types.
test_other_types_are_never_at_most if {
	not number.at_most(null, 2)
	not number.at_most(true, 2)
	not number.at_most(2, "1")
	not number.at_most("1", 2)
	not number.at_most(2, {})
}

# Exactly: neither nearly, nor rounded, nor as texts, nor up to a bound.
_order := [-25000, -1, -0.0005, 0, 0.0001, 0.5, 1, 9, 10, 99.99, 99.995, 100, 24999.5, 25000, 25000.0005, 25000.009, 25020, 100000, 2000001]

test_order[name] if {
	some i, a in _order
	some j, b in _order
	name := sprintf("%v and %v", [a, b])
	{true | number.at_most(a, b)} == {true | i <= j}
}
