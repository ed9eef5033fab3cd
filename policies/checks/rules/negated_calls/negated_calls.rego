# METADATA
# title: Calls under not
# description: |
#   OPA looks an argument up outside of the `not`: where the attribute is absent, `not x in input.a.b` is undefined and the
#   rule says nothing. Seen are references of `input` and `data`, spelled out or through an import, in the arguments of
#   a negated call or in the brackets of a negated reference, of libraries as well. `==` with a reference for an operand is
#   safe, and so is what the request's shape demands. Not seen: a rule of the same package that may be undefined.
package checks.rules.negated_calls

import data.checks.lib.modules
import data.checks.lib.request
import data.checks.lib.terms

# METADATA
# title: Findings
# description: Negated calls with an argument that may be absent.
findings contains modules.finding(module.file, reference, message, hint) if {
	some module in input.modules
	some rule in module.tree.rules
	walk(rule, [_, expression])
	expression.negated
	walk(expression, [path, reference])
	reference.type == "ref"
	not _safe(expression, path)
	_may_be_absent(terms.imported(terms.parts(reference), module.tree))
	message := $"where `{terms.shown(reference)}` is absent, this `not` is undefined, and the rule says nothing"
	hint := "put the call into a function and negate that: `not _f(x)`, with `_f(x) if` and the call"
}

# The reference that is negated itself, or an operand of `==`.
_safe(_, ["terms"])

_safe(expression, ["terms", index]) if {
	index > 0
	terms.operator(expression.terms[0]) in {"equal", "eq"}
}

# A function's name.
_safe(_, ["terms", 0])

_safe(expression, path) if {
	above := count(path) - 2
	array.slice(path, above, above + 2) == ["value", 0]
	object.get(expression, array.slice(path, 0, above), {}).type == "call"
}

# Comprehensions and templates are never undefined.
_safe(expression, path) if {
	some depth, _ in path
	term := object.get(expression, array.slice(path, 0, depth), null)
	is_object(term)
	term.type in {"arraycomprehension", "setcomprehension", "objectcomprehension", "templatestring"}
}

_may_be_absent(parts) if {
	parts[0].value == "input"
	count(parts) > 2
	not request.required(terms.dotted(parts))
}

# Below a package of ours are its rule, which may hold a set, and the fields of what it holds.
_may_be_absent(parts) if {
	[part.value | some part in array.slice(parts, 0, 3)] == ["data", "authz", "lib"]
	count(parts) > 5
}

_may_be_absent(parts) if {
	parts[0].value == "data"
	count(parts) > 2
	[part.value | some part in array.slice(parts, 1, 3)] != ["authz", "lib"]
}
