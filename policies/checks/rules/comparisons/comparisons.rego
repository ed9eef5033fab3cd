# METADATA
# title: Comparisons
# description: |
#   Rego orders values of different types: `"25000" > 5` and `null <= 25000` are true. A concern compares with
#   `data.authz.lib.number.at_most`, which accepts only numbers. `< <= > >=` may be used where both sides are always
#   numbers: a literal, the result of a builtin that always returns a number, such as `count`, or a term that `is_number`
#   has checked earlier in the same body. The check does not see comparisons by `max`, `sort` or `==`.
package checks.rules.comparisons

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.terms
import data.checks.lib.types

# METADATA
# title: Findings
# description: Comparisons in concerns in which a side may have another type than number.
findings contains modules.finding(file, call.node, message, hint) if {
	some file, concern in modules.concerns
	some call in terms.calls[file]
	sign := _signs[call.name]
	some operand in call.arguments
	not _number(operand)
	not types.guarded({"number"}, operand, bindings.at(concern.tree, call.rule, call.path))
	message := $"`{sign}` compares values of any type: `{terms.shown(operand)}` may not be a number"
	hint := "use `number.at_most(a, b)` of `data.authz.lib.number`, and a function under `not` for the opposite"
}

_signs := {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

_number(operand) if operand.type == "number"

_number(operand) if {
	operand.type == "call"
	input.builtins[terms.operator(operand.value[0])].result.type == "number"
}
