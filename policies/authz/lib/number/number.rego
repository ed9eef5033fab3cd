# METADATA
# title: Comparing and calculating
# description: |
#   Rego orders values of different types ("25000" > 5 holds), and `+ - * / %` of decimals differ between OPA and WebAssembly.
#   These functions ask for numbers, and are exact on both. With anything else they are undefined.
package authz.lib.number

import data.authz.lib.decimal

# Both are numbers, and the first is no larger than the second.
at_most(a, b) if {
	is_number(a)
	is_number(b)
	a <= b
}

# Both are numbers, and the same number, however it is spelled. (A rule named `equal` would replace `==` here.)
equals(a, b) if {
	at_most(a, b)
	at_most(b, a)
}

# A number without decimals; a guard for `+ - * %`, which are exact with whole numbers.
whole(x) if decimal.whole(x)

# The sum of a list of numbers.
sum(list) := decimal.total(list)

# The first number without the second.
difference(a, b) := decimal.total([a, decimal.multiplied([b, -1])])

# The product of a list of numbers.
product(list) := decimal.multiplied(list)

# So many per cent of an amount, such as a fee or a tolerance.
percentage(amount, percent) := decimal.multiplied([amount, percent, 0.01])

# A number rounded to so many decimals, from 0 on; a half is rounded away from zero.
rounded(x, decimals) := decimal.rounded(x, decimals) if {
	whole(decimals)
	decimals >= 0
}
