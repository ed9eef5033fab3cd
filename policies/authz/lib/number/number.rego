# METADATA
# title: Comparing and calculating
# description: |
#   Compares and calculates with numbers, exactly on both engines. Rego itself orders values of different types ("25000" > 5
#   is true), and `+ - * / %` of decimals differ between OPA and WebAssembly. For other types these functions are undefined.
package authz.lib.number

import data.authz.lib.decimal

# Both are numbers, and the first is no larger than the second.
at_most(a, b) if {
	is_number(a)
	is_number(b)
	a <= b
}

# Both are numbers with the same value, in any spelling. (A rule named `equal` would replace `==` here.)
equals(a, b) if {
	at_most(a, b)
	at_most(b, a)
}

# A number without decimals; a guard for `+ - * %`, which are exact with whole numbers.
whole(x) if decimal.whole(x)

# The sum of a list of numbers.
sum(list) := decimal.total(list)

# The first number minus the second.
difference(a, b) := decimal.total([a, decimal.multiplied([b, -1])])

# The product of a list of numbers.
product(list) := decimal.multiplied(list)

# This percentage of an amount, such as a fee or a tolerance.
percentage(amount, percent) := decimal.multiplied([amount, percent, 0.01])

# A number rounded to this many decimals, 0 or more; a half is rounded away from zero.
rounded(x, decimals) := decimal.rounded(x, decimals) if {
	whole(decimals)
	decimals >= 0
}
