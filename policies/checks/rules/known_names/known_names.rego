# METADATA
# title: Known names
# description: |
#   A misspelt name of the request or of the data is undefined, so the rule that reads it never fires. OPA's type checker
#   finds such names in references, through variables and rules; this check finds the others. A concern spells out names:
#   it evaluates nothing under other data (`with`), states no schema, and passes no record of the request to a call. The
#   names that a function reads of its arguments are checked where it is called, and so are those of `object.get`.
#   `input.records` has the names by dotted path, null where there may be others. `input.values` has all texts that a path
#   can have, such as the names of tools. `input.rules` has the rules of all modules.
#   A name may come from a literal list; then every element is checked.
#   The check does not see `object.get` and functions on the value of a rule or a comprehension of the concern, functions
#   that a function calls, and other computed names of arguments and of data.
package checks.rules.known_names

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.terms
import data.checks.lib.types

# METADATA
# title: Findings
# description: Names in the user's concerns that do not exist, and constructs that would hide such a name.
findings contains modules.finding(file, node, message, hint) if {
	some [file, node, reading] in _read
	some depth, step in reading
	names := input.records[terms.dotted(array.slice(reading, 0, depth))]
	is_array(names)
	step.type == "string"
	not step.value in names
	shown := terms.shown({"type": "ref", "value": array.slice(reading, 0, depth + 1)})
	message := $"`{shown}` does not exist"
	hint := $"these exist: {concat(", ", names)}"
}

findings contains modules.finding(file, node, message, "write the name as a literal: each member of a record has its own type") if {
	some [file, node, reading] in _read
	some depth, step in reading
	_is_record(terms.dotted(array.slice(reading, 0, depth)))
	step.type != "string"
	shown := terms.shown({"type": "ref", "value": array.slice(reading, 0, depth)})
	message := $"a member of `{shown}` is read by a computed name"
}

findings contains modules.finding(file, call.node, message, "pass the members that the call needs") if {
	some file, calls in terms.calls
	concern := _custom[file]
	some call in calls
	not call.name in _nameless
	some index, argument in call.arguments
	walk(argument, [path, term])
	not _holds(call, index, argument, path)
	some reading in types.readings(term, bindings.at(concern.tree, call.rule, call.path))
	_is_record(terms.dotted(reading))
	message := $"`{terms.shown(term)}` is a record of the request; a call could read unknown names of it"
}

findings contains modules.finding(file, call.node, message, $"known: {concat(", ", known)}") if {
	some file, calls in terms.calls
	concern := _custom[file]
	some call in calls
	call.name in {"eq", "equal", "neq", "internal.member_2"}
	place := bindings.at(concern.tree, call.rule, call.path)
	some side, term in array.slice(call.arguments, 0, 2)
	some given in _given(term)
	some reading in types.readings({"type": "ref", "value": given}, place)
	known := input.values[terms.dotted(reading)]
	some text in _texts(call.arguments[1 - side], place)
	text.type == "string"
	not text.value in known
	message := $"`{terms.shown({"type": "ref", "value": reading})}` is never \"{text.value}\""
}

findings contains modules.finding(file, node, message, hint) if {
	some [file, node, reading] in _read
	reading[0].value == "data"
	not _is_rule_or_data(reading)
	message := $"`{terms.shown({"type": "ref", "value": reading})}` is neither a rule nor a root of the data"
	hint := "data has the roots directory and settings; check the spelling of packages and rules"
}

findings contains modules.finding(file, expression, message, hint) if {
	some file, concern in _custom
	walk(concern.tree.rules, [_, expression])
	expression["with"]
	message := "`with` in a concern: names in it are not checked"
	hint := "use `with` in tests only; pass the value to a function as an argument"
}

findings contains modules.finding(file, concern.tree["package"], message, "remove it: the build applies the schemas") if {
	some file, concern in _custom
	walk(concern.tree, [_, node])
	some stated in node.schemas
	[part.value | some part in stated.schema] != ["schema", "request"]
	message := "METADATA states a schema, which would replace the schema of the request"
}

_custom[file] := concern if {
	some file, concern in modules.concerns
	startswith(concern["package"], "custom.")
}

# Every reference and every `object.get`, with its place and the path that it reads.
_reads := [{"file": file, "tree": concern.tree, "rule": rule, "path": path, "node": node, "read": read} |
	some file, concern in _custom
	some rule in concern.tree.rules
	walk(rule, [path, node])
	is_object(node)
	not "with" in path
	some read in _paths(node)
]

_read := array.concat(
	[[item.file, item.node, reading] |
		some item in _reads
		place := bindings.at(item.tree, item.rule, item.path)
		some computed in types.readings({"type": "ref", "value": item.read}, place)
		some reading in _spelled(computed, place)
	],
	[[item.file, item.node, reading] |
		some item in _reads
		some reading in _given_to(item)
	],
)

# If a part of the path is one of a few literal names, each of these; otherwise the path itself.
_spelled(reading, place) := spelled if {
	spelled := {array.concat(array.slice(reading, 0, depth), rest) |
		some depth, step in reading
		depth > 0
		some name in _constants(step, place)
		rest := array.concat([name], array.slice(reading, depth + 1, count(reading)))
	}
	count(spelled) > 0
} else := {reading}

# The texts that a variable can have, if it can have nothing else.
_constants(step, place) := names if {
	step.type == "var"
	bindings_of_it := [binding | some binding in place.bound; binding.name == step.value]
	count(bindings_of_it) == 1
	names := _written(bindings_of_it[0])
	every name in names {
		name.type == "string"
	}
}

_texts(term, _) := [term] if term.type == "string"

_texts(term, _) := term.value if term.type in {"array", "set"}

_texts(term, place) := _constants(term, place)

_written(binding) := [binding.term] if binding.how == "is"

_written(binding) := binding.term.value if {
	binding.how == "element"
	binding.term.type in {"array", "set"}
}

# A function that reads a member of its argument reads it from the argument of each call.
_given_to(item) := [array.concat(reading, array.slice(item.read, 1, count(item.read))) |
	some index, argument in item.rule.head.args
	item.read[0].value == argument.value
	some call in terms.calls[item.file]
	call.name == modules.name(item.rule)
	some given in _given(call.arguments[index])
	some reading in types.readings({"type": "ref", "value": given}, bindings.at(item.tree, call.rule, call.path))
]

# The path that a reference or `object.get` reads.
_paths(node) := [node.value] if node.type == "ref"

_paths(node) := [array.concat(terms.parts(node.value[1]), _keys(node.value[2]))] if {
	node.type == "call"
	terms.operator(node.value[0]) == "object.get"
}

_paths(node) := [array.concat(terms.parts(node.terms[1]), _keys(node.terms[2]))] if {
	terms.operator(node.terms[0]) == "object.get"
}

_given(term) := _paths(term) if term.type in {"call", "ref"}

_given(term) := [[term]] if term.type == "var"

_keys(key) := key.value if key.type == "array"

_keys(key) := [key] if key.type != "array"

# The enforcement point names the members of these records. Names in arguments and in mapped values may be computed.
_is_record(path) if {
	some record, _ in input.records
	record == path
	not startswith(path, "input.context.arguments")
	not startswith(path, "data.")
}

_is_record(path) if path in {"data", "data.directory", "data.settings"}

# Both sides of a comparison have a type; the other builtins read no names.
_nameless := {"assign", "eq", "equal", "neq", "internal.member_2", "internal.member_3", "count"} | object.keys(types.guards)

# The object from which a reference or `object.get` reads a member.
_holds(call, 0, _, []) if call.name == "object.get"

_holds(_, _, argument, path) if {
	above := count(path) - 2
	array.slice(path, above, above + 1) == ["value"]
	holder := object.get(argument, array.slice(path, 0, above), argument)
	_held(holder, path[above + 1])
}

_held(holder, 0) if holder.type in {"ref", "call"}

_held(holder, 1) if {
	holder.type == "call"
	terms.operator(holder.value[0]) == "object.get"
}

_is_rule_or_data(reading) if count(reading) == 1

_is_rule_or_data(reading) if reading[1].value in {"config", "directory", "manifests", "settings"}

_is_rule_or_data(reading) if {
	some rule in input.rules
	startswith(concat("", [terms.dotted(reading), "."]), concat("", [rule, "."]))
}
