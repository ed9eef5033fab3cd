# METADATA
# title: The modules
# description: Sorts the modules of a policy by their purpose, and gives the locations of findings in them.
package checks.lib.modules

# METADATA
# title: Concerns
# description: By file, each module of a concern, in the baseline or of the user, with the concern's name and its package.
concerns[module.file] := {"name": path[2], "package": concat(".", path), "source": module.source, "tree": module.tree} if {
	some module in input.modules
	path := package_path(module.tree)
	array.slice(path, 0, 2) in [["authz", "concerns"], ["custom", "concerns"]]
	count(path) == 3
}

# METADATA
# title: Firsts
# description: By file, only the first module of each concern, for findings about the concern as a whole.
firsts[file] := concern if {
	some file, concern in concerns
	file == min({other | some other, same in concerns; same["package"] == concern["package"]})
}

# METADATA
# title: Reasoned
# description: |
#   By file, each module that returns reasons, with the first part of their codes: the concerns and the decision itself.
reasoned[file] := {"name": concern.name, "source": concern.source, "tree": concern.tree} if some file, concern in concerns

reasoned[module.file] := {"name": "decision", "source": module.source, "tree": module.tree} if {
	some module in input.modules
	package_path(module.tree) == ["authz"]
}

# METADATA
# title: Parts
# description: The rules that the decision reads from a concern.
parts := {"deny", "step_up", "allow", "obligations"}

# METADATA
# title: Reporting
# description: |
#   By file, the rules that need METADATA: the parts of a concern, and every rule that reads its own annotations to build a
#   reason.
reporting[file] := [rule |
	some rule in module.tree.rules
	_reports(rule, file)
] if some file, module in reasoned

_reports(rule, file) if {
	concerns[file]
	name(rule) in parts
}

_reports(rule, _) if {
	walk(rule, [_, node])
	node.type == "call"
	[part.value | some part in node.value[0].value] == ["rego", "metadata", "rule"]
}

# METADATA
# title: Annotations
# description: The METADATA of a rule; an empty object when it has none.
annotations(rule) := object.get(rule, ["annotations", 0], {})

# METADATA
# title: Code
# description: The reason code that a rule's METADATA states; undefined when it states no string.
code(rule) := found if {
	found := annotations(rule).custom.code
	is_string(found)
}

# METADATA
# title: Name
# description: The first part of the name that a rule defines.
name(rule) := rule.head.ref[0].value

# METADATA
# title: Package path
# description: The parts of a module's package, without `data`.
package_path(tree) := [part.value | some part in array.slice(tree.package.path, 1, count(tree.package.path))]

# METADATA
# title: Finding
# description: A finding at a node of a file's tree, with a message and a hint.
finding(file, node, message, hint) := {
	"file": file,
	"line": object.get(node, ["location", "row"], 1),
	"column": object.get(node, ["location", "col"], 1),
	"message": message,
	"hint": hint,
}

# METADATA
# title: Alias
# description: The name by which a module's import is used.
alias(written) := object.get(written, "alias", written.path.value[count(written.path.value) - 1].value)
