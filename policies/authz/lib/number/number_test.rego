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
