# METADATA
# title: Numbers
# description: |
#   The one place where attributes are compared. Rego orders values of different types ("25000" > 5 holds), so both
#   sides have to be numbers first.
package authz.lib.number

# Both are numbers, and the first is no larger than the second.
at_most(a, b) if {
	is_number(a)
	is_number(b)
	a <= b
}
