package authz.lib.number_test

import data.authz.lib.number
import rego.v2

test_at_most if {
	number.at_most(1, 2)
	number.at_most(2, 2)
	not number.at_most(2.01, 2)
}

# Numbers are equal in every spelling.
test_equal if {
	number.equals(100, 1e2)
	number.equals(0.5, 0.50)
	not number.equals(0.1, 0.10000001)
	not number.equals("1", 1)
	not number.equals(null, null)
}

_whole := {1: true, -7: true, 0: true, 1e3: true, 2.0: true, 2.5: false, 1e-7: false, 9007199254740991: true, "1": false}

test_whole[x] if {
	some x, expected in _whole
	{true | number.whole(x)} == {true | expected}
}

# Binary floats give other results for most of these.
_calculated := {
	"sum": [
		[number.sum([0.1, 0.2]), 0.3],
		[number.sum([12.3, 0.1]), 12.4],
		[number.sum([9007199254740991, 0.001, -1e-7]), 9007199254740991.0009999],
		[number.sum([5e-324, 1, -1]), 5e-324],
		[number.sum([-1.25, 1.25]), 0],
		[number.sum([1E2, 1.5e+1]), 115],
		[number.sum([7]), 7],
		[number.sum([]), 0],
	],
	"difference": [
		[number.difference(0.3, 0.1), 0.2],
		[number.difference(1, 1.005), -0.005],
	],
	"product": [
		[number.product([1.1, 1.1]), 1.21],
		[number.product([-0.07, 100]), -7],
		[number.product([9007199254740991, 9007199254740991]), 81129638414606663681390495662081],
		[number.product([1e-200, 1e-200, 3]), 3e-400],
		[number.product([]), 1],
	],
	"percentage": [
		[number.percentage(19.99, 19), 3.7981],
		[number.percentage(250, 0.5), 1.25],
	],
	"rounded": [
		[number.rounded(1.005, 2), 1.01],
		[number.rounded(-1.005, 2), -1.01],
		[number.rounded(2.5, 0), 3],
		[number.rounded(-0.4, 0), 0],
		[number.rounded(2.4449, 2), 2.44],
		[number.rounded(9.995, 2), 10],
		[number.rounded(12.3, 4), 12.3],
		[number.rounded(1e-300, 2), 0],
	],
}

# The result has the same value and the same text: a text shows all digits.
test_calculated[name] if {
	some name, pairs in _calculated
	every pair in pairs {
		pair[0] == pair[1]
	}
}

test_nothing_is_calculated_with_other_types if {
	not number.sum([1, "1"])
	not number.sum({1, 2})
	not number.product(7)
	not number.difference(null, 1)
	not number.product([true, 2])
	not number.percentage("10", 1)
	not number.rounded("1.5", 1)
	not number.rounded(1.5, -1)
	not number.rounded(1.5, 0.5)
}

# Beyond these bounds a number has no value.
test_bounds if {
	number.product([to_number("1e300"), 0.5])
	number.equals(number.sum([number.product([to_number("1e299"), 1]), 0.5, -0.5]), to_number("1e299"))
	not number.product([to_number("1e300"), 10])
	tiny := to_number("1e-300")
	number.product([tiny, tiny, tiny, tiny])
	not number.product([tiny, tiny, tiny, tiny, 0.1])
}

# Each of these is true in Rego's order of types.
test_other_types_are_never_at_most if {
	not number.at_most(null, 2)
	not number.at_most(true, 2)
	not number.at_most(2, "1")
	not number.at_most("1", 2)
	not number.at_most(2, {})
}

# Comparison is exact: without rounding, without a bound, and not as text.
_order := [-25000, -1, -0.0005, 0, 0.0001, 0.5, 1, 9, 10, 99.99, 99.995, 100, 24999.5, 25000, 25000.0005, 25000.009, 25020, 100000, 2000001]

test_order[name] if {
	some i, a in _order
	some j, b in _order
	name := sprintf("%v and %v", [a, b])
	{true | number.at_most(a, b)} == {true | i <= j}
}
