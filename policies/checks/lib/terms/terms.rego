# METADATA
# title: Terms
# description: Calls and references in the syntax trees of concerns, as values that can be compared and shown.
package checks.lib.terms

import data.checks.lib.modules

# METADATA
# title: Calls
# description: |
#   By file, every call in a concern, with the rule that contains it, the path from there to the call, the name of the
#   function, and the arguments.
calls[file] := [call |
	some rule in concern.tree.rules
	walk(rule, [path, node])
	is_object(node)
	[function, written] := _function(node)
	call := {
		"rule": rule,
		"path": path,
		"node": node,
		"name": operator(function),
		"arguments": written,
	}
] if some file, concern in modules.concerns

_function(node) := [node.value[0], array.slice(node.value, 1, count(node.value))] if node.type == "call"

_function(node) := [node.terms[0], array.slice(node.terms, 1, count(node.terms))] if is_array(node.terms)

# METADATA
# title: Operator
# description: The dotted name of a called function.
operator(reference) := concat(".", [$"{part.value}" | some part in reference.value])

# METADATA
# title: Parts
# description: A variable or a reference as a list of `{type, value}`, without locations; undefined for other terms.
parts(term) := [{"type": "var", "value": term.value}] if term.type == "var"

parts(term) := [{"type": part.type, "value": part.value} | some part in term.value] if term.type == "ref"

# METADATA
# title: Imported
# description: The parts, with the name of an import at the start replaced by its path.
imported(found, tree) := array.concat(target, array.slice(found, 1, count(found))) if {
	targets := [parts(written.path) |
		some written in object.get(tree, "imports", [])
		modules.alias(written) == found[0].value
	]
	target := targets[0]
} else := found

# METADATA
# title: Dotted
# description: |
#   The parts as one dotted string. `*` is a part without a fixed name, or whose name contains a dot. `#` is a key. The
#   result of a call, and a literal list, have no first name.
dotted(found) := concat(".", [_step(index, part) | some index, part in found])

_step(0, part) := part.value if {
	is_string(part.value)
} else := "*"

_step(index, part) := part.value if {
	index > 0
	_fixed(part)
} else := "#" if {
	index > 0
	part.type == "key"
} else := "*" if index > 0

_fixed(part) if {
	part.type == "string"
	not contains(part.value, ".")
}

# METADATA
# title: Shown
# description: A term in the form in which its author wrote it.
shown(term) := concat("", [_shown_part(index, part) | some index, part in found]) if found := parts(term)

shown(term) := $"{operator(term.value[0])}(…)" if term.type == "call"

shown(term) := $"{term.value}" if term.type in {"number", "boolean"}

shown(term) := "null" if term.type == "null"

shown(term) := $"\"{term.value}\"" if term.type == "string"

shown(term) := _composites[term.type]

_composites := {
	"array": "a list",
	"set": "a set",
	"object": "an object",
	"templatestring": "a template",
	"arraycomprehension": "a comprehension",
	"setcomprehension": "a comprehension",
	"objectcomprehension": "a comprehension",
}

_shown_part(0, part) := part.value if {
	is_string(part.value)
} else := "(…)"

_shown_part(index, part) := $".{part.value}" if {
	index > 0
	part.type == "string"
	regex.match(`^[A-Za-z_][A-Za-z0-9_]*$`, part.value)
} else := $"[\"{part.value}\"]" if {
	index > 0
	part.type == "string"
} else := $"[{part.value}]" if {
	index > 0
	part.type in {"var", "number", "boolean"}
} else := "[…]" if index > 0
