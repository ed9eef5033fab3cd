# METADATA
# title: Known names
# description: |
#   A misspelt name of the request or of the data is undefined, and the rule that reads it never says anything. OPA's type
#   checker finds such names in references, through variables and rules; here is what it cannot see. A concern writes names
#   out: it asks nothing under other data (`with`), states no schema of its own, and gives no record of the request to a
#   call. What a function reads of its arguments is looked up where it is called, and `object.get` is held to the same names as a reference.
#   `input.records` has the names by dotted path, null where there may be others; `input.values` all texts that may stand at
#   a path, such as the names of tools; `input.rules` the rules of all modules.
#   A name may come from a list that is written out: each of it is looked up.
#   Not seen: `object.get` and a function on what a rule or a comprehension of one's own holds, a function that a function
#   calls, other computed names of arguments and of data.
package checks.rules.known_names

import data.checks.lib.bindings
import data.checks.lib.modules
import data.checks.lib.terms
import data.checks.lib.types

# METADATA
# title: Findings
# description: Names in the user's concerns that lead nowhere, and whatever would hide some.
findings contains modules.finding(file, node, message, hint) if {
	some [file, node, reading] in _read
	some depth, step in reading
	names := input.records[terms.dotted(array.slice(reading, 0, depth))]
	is_array(names)
	step.type == "string"
	not step.value in names
	shown := terms.shown({"type": "ref", "value": array.slice(reading, 0, depth + 1)})
	message := $"`{shown}` leads to nothing that is there"
	hint := $"known there: {concat(", ", names)}"
}

findings contains modules.finding(file, node, message, "write the name out: of a record, every member has its own") if {
	some [file, node, reading] in _read
	some depth, step in reading
	_is_record(terms.dotted(array.slice(reading, 0, depth)))
	step.type != "string"
	shown := terms.shown({"type": "ref", "value": array.slice(reading, 0, depth)})
	message := $"a member of `{shown}` is read by a name that is computed"
}

findings contains modules.finding(file, call.node, message, "give it the members that it needs") if {
	some file, calls in terms.calls
	concern := _custom[file]
	some call in calls
	not call.name in _nameless
	some index, argument in call.arguments
	walk(argument, [path, term])
	not _holds(call, index, argument, path)
	some reading in types.readings(term, bindings.at(concern.tree, call.rule, call.path))
	_is_record(terms.dotted(reading))
	message := $"`{terms.shown(term)}` is a record of the request, and nobody sees which names a call reads of it"
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
	message := $"`{terms.shown({"type": "ref", "value": reading})}` is no rule and no root of the data"
	hint := "data has the roots directory and settings; check the spelling of packages and rules"
}

findings contains modules.finding(file, expression, message, hint) if {
	some file, concern in _custom
	walk(concern.tree.rules, [_, expression])
	expression["with"]
	message := "`with` in a concern, under which no name is checked"
	hint := "`with` is for tests alone: give what differs to a function as its argument"
}

findings contains modules.finding(file, concern.tree["package"], message, "leave it out: the build applies the schemas") if {
	some file, concern in _custom
	walk(concern.tree, [_, node])
	some stated in node.schemas
	[part.value | some part in stated.schema] != ["schema", "request"]
	message := "METADATA with a schema of its own, which would take the place of what the request is held to"
}

_custom[file] := concern if {
	some file, concern in modules.concerns
	startswith(concern["package"], "custom.")
}

# Every reference and every `object.get`: where it stands, and what it reads.
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

# With a name that is one of a few that are written out, each of these; else as it stands.
_spelled(reading, place) := spelled if {
	spelled := {array.concat(array.slice(reading, 0, depth), rest) |
		some depth, step in reading
		depth > 0
		some name in _constants(step, place)
		rest := array.concat([name], array.slice(reading, depth + 1, count(reading)))
	}
	count(spelled) > 0
} else := {reading}

# The texts that a variable stands for, where it stands for nothing else.
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

# What a function reads of an argument, it reads of what each of its calls gives.
_given_to(item) := [array.concat(reading, array.slice(item.read, 1, count(item.read))) |
	some index, argument in item.rule.head.args
	item.read[0].value == argument.value
	some call in terms.calls[item.file]
	call.name == modules.name(item.rule)
	some given in _given(call.arguments[index])
	some reading in types.readings({"type": "ref", "value": given}, bindings.at(item.tree, call.rule, call.path))
]

# What a reference reads, and what `object.get` does.
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

# Whose members the enforcement point names: of arguments and of what a mapping gives, names may be computed.
_is_record(path) if {
	some record, _ in input.records
	record == path
	not startswith(path, "input.context.arguments")
	not startswith(path, "data.")
}

_is_record(path) if path in {"data", "data.directory", "data.settings"}

# Both sides of the former are typed; the latter read no names.
_nameless := {"assign", "eq", "equal", "neq", "internal.member_2", "internal.member_3", "count"} | object.keys(types.guards)

# What a reference, or `object.get`, reads a member of.
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
