package authz

import data.authz.lib.number
import data.authz.lib.text
import rego.v2

decision := [[answer | answer := _answer(case)] | some case in input.cases]

# JSON has no sets.
_of(value) := {_plain(item) | some item in value.set} if {
	is_object(value)
	is_array(value.set)
} else := value

_plain(value) := {item | some item in value.set} if {
	is_object(value)
	is_array(value.set)
} else := value

