# METADATA
# title: Mixed members
# description: |
#   OPA 1.21.0 to 1.22.0 ignore a rule with `input.x in {"a", input.y}`, because their index of rules contains the constants
#   only. Enforcement points do not use these versions, but others may load the bundle with them. The check finds `in` as a
#   whole expression of a rule's body with a literal collection of a constant and something else. The index ignores, so
#   these are safe: `in` under `not`, in a comprehension or in `every`, and a collection with a name.
package checks.rules.mixed_members

import data.checks.lib.modules
import data.checks.lib.terms

# METADATA
# title: Findings
# description: Tests of membership among constants and something else.
findings contains modules.finding(module.file, collection, message, hint) if {
	some module in input.modules
	some rule in module.tree.rules
	some expression in _expressions(rule)
	is_array(expression.terms)
	terms.operator(expression.terms[0]) == "internal.member_2"
	collection := expression.terms[2]
	elements := _elements(collection)
	some varying in elements
	_varies(varying)
	some constant in elements
	not _varies(constant)
	message := $"OPA 1.21.0 to 1.22.0 do not find `{terms.shown(varying)}` here, beside a constant, so the rule never fires"
	hint := "name the collection: `choices := {…}`, then `… in choices`"
}

_expressions(rule) := [expression |
	walk(rule, [path, part])
	every step in path {
		step == "else"
	}
	some expression in part.body
	not expression.negated
]

_elements(collection) := collection.value if collection.type in {"array", "set"}

_elements(collection) := [pair[1] | some pair in collection.value] if collection.type == "object"

_varies(term) if term.type in {"call", "ref", "templatestring", "var"}
