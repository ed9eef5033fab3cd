# METADATA
# title: Engine-dependent results
# description: |
#   OPA calculates with binary floats, WebAssembly with decimals. Only whole numbers are the same on both, where
#   `data.checks.lib.types` can prove them. The order of sets and the form of values in templates differ as well.
package checks.rules.engine_dependent

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.terms
import data.checks.lib.types

# METADATA
# title: Findings
# description: Calls and templates in concerns whose result depends on the engine.
findings contains modules.finding(file, call.node, message, hint) if {
	some file, concern in modules.concerns
	some call in terms.calls[file]
	place := bindings.at(concern.tree, call.rule, call.path)
	[indices, wanted, hint] := _wanted[call.name]
	some index in indices
	depends(call, index, place)
	shown := object.get({"plus": "+", "minus": "-", "mul": "*", "rem": "%"}, call.name, call.name)
	message := $"the result of `{shown}` depends on the engine: `{terms.shown(call.arguments[index])}` is not {wanted}"
}

findings contains modules.finding(file, template, message, hint) if {
	some file, concern in modules.concerns
	some rule in concern.tree.rules
	walk(rule, [path, template])
	some part in template.value.parts
	term := _term(object.get(part, "terms", part))
	not types.proven({"string", "boolean", "null", "whole number"}, term, bindings.at(concern.tree, rule, path))
	message := $"the text of this template depends on the engine: `{terms.shown(term)}` is not a text or whole number"
	hint := "put the value into the reason's details, or check it first, earlier in the same body: `is_string(x)`"
}

# The result of the call depends on the engine because of this argument.
depends(call, index, place) if {
	[indices, wanted, _] := _wanted[call.name]
	index in indices
	not _proven(wanted, call.arguments[index], place)
}

_term(written) := {"type": "call", "value": written} if {
	is_array(written)
} else := written

_proven(wanted, term, place) if types.proven({_types[wanted]}, term, place)

_types := {"a whole number": "whole number", "a list": "array"}

_proven("a list of whole numbers", term, place) if types.elements_proven({"whole number"}, term, place)

_proven("a literal text", term, _) if {
	term.type == "string"
	term.value != ""
}

_proven("a whole number or set", term, place) if types.proven({"whole number", "set"}, term, place)

_wanted := {
	"abs": [[0], "a whole number", _ask],
	"array.slice": [[1, 2], "a whole number", _ask],
	"concat": [[1], "a list", "sort it first, since a set has no order: `concat(\",\", sort(x))`"],
	"indexof": [[1], "a literal text", "write the text as a literal: OPA fails with an empty text"],
	"lower": [[0], "a text of ASCII", "use `text.lowercase(x)` of `data.authz.lib.text`"],
	"minus": [[0, 1], "a whole number or set", $"use `number.difference(a, b)` of `data.authz.lib.number`, or {_ask}"],
	"mul": [[0, 1], "a whole number", $"use `number.product([a, b])` of `data.authz.lib.number`, or {_ask}"],
	"plus": [[0, 1], "a whole number", $"use `number.sum([a, b])` of `data.authz.lib.number`, or {_ask}"],
	"product": [[0], "a list of whole numbers", "use `number.product(list)` of `data.authz.lib.number`"],
	"rem": [[0, 1], "a whole number", _ask],
	"substring": [[1, 2], "a whole number", _ask],
	"sum": [[0], "a list of whole numbers", "use `number.sum(list)` of `data.authz.lib.number`"],
	"to_number": [[0], "a text of digits", "require a number in the schema of the argument, or in the data"],
	"upper": [[0], "a text of ASCII", "use `text.uppercase(x)` of `data.authz.lib.text`"],
}

_ask := "check it first, earlier in the same body: `number.whole(x)`"
