# METADATA
# title: Types
# description: |
#   Tells whether a term in the body of a rule always has one of some types when it is defined. The types are known of
#   literals, of the results of builtins, of the parts of the request whose shape is fixed, of rules of the package with
#   such a value, and of terms with a guard: `is_string(x)` and the like, earlier in the same body or in a body around it.
#   Values from `data.authz.lib`, `data.config` and `data.manifests` are trusted, because the baseline and the build have
#   checked them. All other types are unknown, also those of a function's arguments. `whole number` counts as a type.
package checks.lib.types

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.request
import data.checks.lib.terms

# METADATA
# title: Kinds
# description: The types that a builtin's declaration admits; undefined when it admits any.
kinds(declared) := {declared.type} if declared.type != "any"

# The `of` of a set is its elements; here it can also be an object.
kinds(declared) := {alternative.type | some alternative in declared.of} if is_array(declared.of)

# METADATA
# title: Element kinds
# description: The types that a declaration allows for elements, or for an object's values; empty when it allows any.
element_kinds(declared) := {kind |
	some alternative in _alternatives(declared)
	some kind in kinds(_inner(alternative))
}

_alternatives(declared) := object.get(declared, "of", []) if declared.type == "any"

_alternatives(declared) := [declared] if declared.type != "any"

_inner(declared) := declared.dynamic if declared.type == "array"

_inner(declared) := declared.of if declared.type == "set"

_inner(declared) := declared.dynamic.value if declared.type == "object"

# METADATA
# title: Proven
# description: The term has one of the types, at a place that `bindings.at` returns.
proven(wanted, term, place) if _plain(wanted, term, place)

proven(wanted, term, place) if {
	some name in _own_names(term, place)
	definitions := _definitions(name, place.tree)
	count(definitions) > 0
	every rule in definitions {
		_defined(wanted, rule, place.tree)
	}
}

# METADATA
# title: Guarded
# description: A guard for one of the types comes before the place. Nothing else is trusted.
guarded(wanted, term, place) if {
	some reading in readings(term, place)
	_asked(wanted, reading, place)
}

# METADATA
# title: Elements proven
# description: The elements of the list, set or object have one of the types.
elements_proven(wanted, term, place) if {
	some meant in _meant(term, place)
	_elements(wanted, meant, place)
}

elements_proven(wanted, term, place) if {
	some name in _own_names(term, place)
	definitions := _definitions(name, place.tree)
	count(definitions) > 0
	every rule in definitions {
		_defined_elements(wanted, rule, place.tree)
	}
}

# A rule or a function of the same package, under the name in the term.
_own_names(term, place) := {reading[0].value |
	some reading in readings(term, place)
	count(reading) == 1
} if {
	term.type != "call"
}

_own_names(term, _) := {terms.operator(term.value[0])} if term.type == "call"

_definitions(name, tree) := [rule |
	some rule in tree.rules
	modules.name(rule) == name
	count(rule.head.ref) == 1
]

# A partial set. The values of an `else` are not examined, so a rule with one is unknown.
_defined(wanted, rule, _) if {
	_partial_set(rule)
	"set" in wanted
}

_defined(wanted, rule, tree) if {
	not rule["else"]
	_plain(wanted, rule.head.value, bindings.at(tree, rule, ["head"]))
}

_defined_elements(wanted, rule, tree) if {
	_partial_set(rule)
	_plain(wanted, rule.head.key, bindings.at(tree, rule, ["head"]))
}

_defined_elements(wanted, rule, tree) if {
	not rule["else"]
	place := bindings.at(tree, rule, ["head"])
	some meant in _meant(rule.head.value, place)
	_elements(wanted, meant, place)
}

_partial_set(rule) if {
	rule.head.key
	not rule.head.value
}

_plain(wanted, term, place) if {
	some meant in _meant(term, place)
	_value(wanted, meant, place)
}

_plain(wanted, term, place) if {
	some reading in readings(term, place)
	_known(wanted, reading, place)
}

# An element of a literal list, or of the result of a builtin.
_plain(wanted, term, place) if {
	some [name, how] in _of_a_list(term, place)
	some binding in place.bound
	binding.name == name
	binding.how == how
	_listed(wanted, binding.term)
}

_of_a_list(term, place) := {[reading[0].value, how] |
	some reading in readings(term, place)
	how := {1: "element", 2: "is"}[count(reading)]
}

_value(wanted, term, _) if term.type in wanted

_value(wanted, term, _) if _written[term.type] in wanted

_value(wanted, term, _) if {
	term.type == "call"
	some kind in kinds(input.builtins[terms.operator(term.value[0])].result)
	kind in wanted
}

_value(wanted, term, _) if {
	"whole number" in wanted
	_whole(term)
}

_whole(term) if {
	term.type == "number"
	regex.match(`^-?[0-9]+$`, $"{term.value}")
}

# The arguments of these builtins are checked at their own place.
_whole(term) if terms.operator(term.value[0]) in {"abs", "count", "indexof", "minus", "mul", "plus", "product", "rem", "sum"}

_value(wanted, term, place) if {
	term.type == "call"
	wanted != {"whole number"}
	_trusted(terms.imported(terms.parts(term.value[0]), place.tree))
}

_value(wanted, term, place) if {
	[object, key, default_value] := _get(term)
	default_value.type in wanted
	some reading in readings(object, place)
	_known(wanted, array.concat(reading, _key_parts(key)), place)
}

_written := {
	"arraycomprehension": "array",
	"setcomprehension": "set",
	"objectcomprehension": "object",
	"templatestring": "string",
}

_get(term) := array.slice(term.value, 1, 4) if {
	term.type == "call"
	terms.operator(term.value[0]) == "object.get"
}

_key_parts(key) := [{"type": part.type, "value": part.value} | some part in key.value] if key.type == "array"

_key_parts(key) := [{"type": key.type, "value": key.value}] if key.type != "array"

_elements(wanted, term, place) if {
	term.type in {"array", "set"}
	every element in term.value {
		_plain(wanted, element, place)
	}
}

_elements(wanted, term, place) if {
	term.type in {"arraycomprehension", "setcomprehension"}
	_plain(wanted, term.value.term, bindings.within(place, term.value))
}

_elements(wanted, term, _) if _listed(wanted, term)

_listed(wanted, term) if {
	term.type in {"array", "set"}
	every element in term.value {
		element.type in wanted
	}
}

_listed(wanted, term) if {
	term.type == "call"
	some kind in element_kinds(input.builtins[terms.operator(term.value[0])].result)
	kind in wanted
}

_elements(wanted, term, place) if {
	some reading in readings(term, place)
	_known(wanted, array.concat(reading, [_any]), place)
}

# The term and its equivalents: the value of its variable, and the list before it was sorted.
_meant(term, place) := array.concat([term], array.concat(_opened(term, place), [further |
	some meant in _opened(term, place)
	some further in _opened(meant, place)
]))

_opened(term, place) := [binding.term |
	term.type == "var"
	some binding in place.bound
	binding.name == term.value
	binding.how == "is"
] if {
	term.type != "call"
}

_opened(term, _) := [term.value[1] | terms.operator(term.value[0]) == "sort"] if term.type == "call"

# METADATA
# title: Readings
# description: |
#   The ways to write a reference: unchanged, with variables replaced by their values, and with imports spelled out.
readings(term, place) := {terms.imported(reading, place.tree) |
	once := _replaced(terms.parts(term), place)
	twice := _replaced(once, place)
	some reading in [terms.parts(term), once, twice, _replaced(twice, place)]
}

_replaced(reading, place) := array.concat(targets[0], array.slice(reading, 1, count(reading))) if {
	targets := [array.concat(terms.parts(binding.term), _steps[binding.how]) |
		some binding in _bindings(reading, place)
	]
	count(targets) == 1
} else := reading

_bindings(reading, place) := [binding |
	some binding in place.bound
	binding.name == reading[0].value
]

_steps := {"is": [], "element": [_any], "key": [_key]}

_any := {"type": "any", "value": "*"}

_key := {"type": "key", "value": "#"}

_known(wanted, reading, _) if request.type(terms.dotted(reading)) in wanted

_known(wanted, reading, _) if {
	"string" in wanted
	last := count(reading) - 1
	reading[last] == _key
	request.type(terms.dotted(array.slice(reading, 0, last))) == "object"
}

_known(_, reading, _) if _trusted(reading)

# Arguments that the schemas call integers; without a manifest, all arguments.
_known(wanted, reading, _) if {
	"whole number" in wanted
	some path in input.integers
	startswith($"{terms.dotted(reading)}.", $"{path}.")
}

_known(wanted, reading, place) if _asked(wanted, reading, place)

_asked(wanted, reading, place) if {
	not _loose(reading)

	# If one name belongs to two variables, one inside the other, the guard may be for the other variable.
	count(_bindings(reading, place)) < 2
	some expression in place.before
	guarded := _guarded(wanted, expression)
	reading in readings(guarded, place)
}

_known(wanted, reading, place) if {
	last := count(reading) - 1
	reading[last] == _any
	some expression in place.before
	every_element := expression.terms
	some inner in every_element.body
	not inner.negated
	guarded := _guarded(wanted, inner)
	guarded.value == every_element.value.value
	array.slice(reading, 0, last) in readings(every_element.domain, place)
}

# Two elements of one list look the same here, and a guard of one does not cover the other.
_loose(reading) if {
	some part in reading
	part in [_any, _key]
}

_guarded(wanted, expression) := expression.terms[1] if {
	is_array(expression.terms)
	guards[terms.operator(expression.terms[0])] in (wanted | {"whole number" | "number" in wanted})
}

# METADATA
# title: Guards
# description: The builtins that check a type, each with that type.
guards := {
	"is_array": "array",
	"is_boolean": "boolean",
	"is_null": "null",
	"is_number": "number",
	"is_object": "object",
	"is_set": "set",
	"is_string": "string",
	"number.whole": "whole number",
}

_trusted(reading) if {
	[part.value | some part in array.slice(reading, 0, 2)] in [["data", "config"], ["data", "manifests"]]
}

_trusted(reading) if [part.value | some part in array.slice(reading, 0, 3)] == ["data", "authz", "lib"]
