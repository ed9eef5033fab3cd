# METADATA
# title: Bindings
# description: The conditions and variables of a rule that are evaluated before a node of it.
package checks.lib.bindings

import data.checks.lib.terms

# METADATA
# title: At
# description: |
#   The facts that are known when the node at `path` in a rule is evaluated. `before` has the expressions that are true by
#   then. `bound` has the variables: each `is` a term, an `element` or a `key` of a term, or an `argument` of the rule, about
#   which nothing is known.
at(tree, rule, path) := {
	"tree": tree,
	"before": before,
	"bound": array.concat(_arguments(rule), _bound(rule, path, before)),
} if {
	before := _before(rule, path)
}

# METADATA
# title: Within
# description: The same for the place in the body of a comprehension where it collects its values.
within(place, comprehension) := {
	"tree": place.tree,
	"before": array.concat(place.before, before),
	"bound": array.concat(place.bound, _bound(comprehension, ["term"], before)),
} if {
	before := _before(comprehension, ["term"])
}

_before(rule, path) := [expression |
	some depth, step in path
	holder := object.get(rule, array.slice(path, 0, depth), null)
	is_object(holder)
	is_array(holder.body)
	some index, expression in holder.body
	not expression.negated
	not expression["with"]
	_precedes(step, index, array.slice(path, depth + 1, depth + 2))
]

_precedes("body", index, [reached]) if index < reached

# These come before the body: the head of a rule, and the collected value of a comprehension.
_precedes(step, _, _) if step in {"head", "term", "key", "value"}

_bound(rule, path, before) := array.concat(
	[binding |
		some expression in before
		some binding in _bindings(expression)
	],
	[binding |
		some depth, _ in path
		holder := object.get(rule, array.slice(path, 0, depth), null)
		some binding in _every(holder)
	],
)

_bindings(expression) := [binding |
	is_array(expression.terms)
	terms.operator(expression.terms[0]) in {"assign", "eq"}
	expression.terms[1].type == "var"
	binding := {"name": expression.terms[1].value, "how": "is", "term": expression.terms[2]}
] if {
	is_array(expression.terms)
}

_bindings(expression) := [binding |
	some symbol in expression.terms.symbols
	some binding in _members(symbol)
] if {
	expression.terms.symbols
}

_members(symbol) := _pair(null, symbol.value[1], symbol.value[2]) if {
	terms.operator(symbol.value[0]) == "internal.member_2"
}

_members(symbol) := _pair(symbol.value[1], symbol.value[2], symbol.value[3]) if {
	terms.operator(symbol.value[0]) == "internal.member_3"
}

_every(holder) := _pair(holder.key, holder.value, holder.domain) if is_object(holder.domain)

_pair(key, value, domain) := [binding |
	some [how, term] in [["key", key], ["element", value]]
	term.type == "var"
	binding := {"name": term.value, "how": how, "term": domain}
]

_arguments(rule) := [{"name": argument.value, "how": "argument", "term": argument} |
	some argument in rule.head.args
	argument.type == "var"
]
