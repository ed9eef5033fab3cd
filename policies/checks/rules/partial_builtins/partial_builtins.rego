# METADATA
# title: Partial builtins
# description: |
#   A builtin that gets a wrong type fails the decision in OPA. In WebAssembly it is undefined, and a denial is lost. So the
#   type of an argument has to be known, or a guard (`is_string(x)` and the like) has to check it earlier in the same body or
#   in a body around it. `data.checks.lib.types` defines the known types.
#   A divisor and an offset have to be literal numbers, and a divisor must not be zero.
#   The check does not see the values of rules in `data.authz.lib`, and does not know whether an attribute exists. A guard
#   inside a function of the concern does not count: repeat it beside the builtin.
package checks.rules.partial_builtins

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.terms
import data.checks.lib.types
import data.checks.rules.engine_dependent

# METADATA
# title: Findings
# description: Arguments of builtins in concerns whose type is not known.
findings contains finding if {
	some file, concern in modules.concerns
	some call in terms.calls[file]
	place := bindings.at(concern.tree, call.rule, call.path)
	some index, declared in input.builtins[call.name].args
	not engine_dependent.depends(call, index, place)
	[what, hint] := _problem(call, index, declared, place)
	finding := modules.finding(file, call.node, $"`{_shown(call.name)}` fails if {what}", hint)
}

_problem(call, index, _, _) := [what, "write the number as a literal"] if {
	_domains[call.name].index == index
	not _written(call.arguments[index], _domains[call.name].admits)
	what := $"`{terms.shown(call.arguments[index])}` {_domains[call.name].fault}"
}

_problem(call, index, declared, place) := [what, hint] if {
	wanted := types.kinds(declared)
	not _domains[call.name].index == index
	not types.proven(wanted, call.arguments[index], place)
	shown := terms.shown(call.arguments[index])
	what := $"`{shown}` is not of type {_either(wanted)}"
	hint := _type_hint(call.arguments[index], _guard(wanted))
}

_problem(call, index, declared, place) := [what, hint] if {
	types.proven(types.kinds(declared), call.arguments[index], place)
	wanted := types.element_kinds(declared)
	count(wanted) > 0
	not types.elements_proven(wanted, call.arguments[index], place)
	shown := terms.shown(call.arguments[index])
	what := $"an element of `{shown}` is not of type {_either(wanted)}"
	hint := _elements_hint(call.arguments[index], _guard(wanted))
}

_type_hint(term, guard) := $"check it first, earlier in the same body: `{guard}({terms.shown(term)})`" if {
	terms.parts(term)
} else := $"give it a name and check it first, in the same body: `x := {terms.shown(term)}`, `{guard}(x)`"

_elements_hint(term, guard) := concat("", [
	"check it first, earlier in the same body: `every x in ", terms.shown(term), " { ", guard, "(x) }`",
]) if {
	terms.parts(term)
} else := $"check each element with `{guard}` where the elements are collected"

# Arguments that need more than the right type.
_domains := {
	"rem": {"index": 1, "fault": "is zero", "admits": "nonzero"},
	"substring": {"index": 1, "fault": "is below zero", "admits": "any"},
}

_written(term, "any") if term.type == "number"

_written(term, "nonzero") if {
	term.type == "number"
	term.value != 0
}

_either(wanted) := concat(" or ", sort(wanted))

# One guard that would be sufficient.
_guard(wanted) := concat("", ["is_", sort(wanted)[0]])

_shown(name) := object.get(_signs, name, name)

_signs := {"plus": "+", "minus": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|"}
