# METADATA
# title: Negations
# description: |
#   If an attribute in `not f(input.a)` is absent, the `not` is undefined and the rule does not fire; with `import rego.v2`
#   it is true. In WebAssembly (OPA 1.22.4), a body in braces after `not` ends loops around it too early, so it is rejected.
package checks.rules.negations

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Modules, also libraries, that use `not` without the import, and negated bodies.
findings contains modules.finding(module.file, module.tree["package"], message, hint) if {
	some module in input.modules
	some rule in module.tree.rules
	walk(rule, [_, expression])
	expression.negated
	imports := [[part.value | some part in written.path.value] | some written in module.tree.imports]
	not ["rego", "v2"] in imports
	message := "`not` without `import rego.v2`: the rule does not fire if an attribute in it is absent"
	hint := "add the line `import rego.v2` below the package"
}

findings contains modules.finding(module.file, expression, message, hint) if {
	some module in input.modules
	some rule in module.tree.rules
	walk(rule, [_, expression])
	expression.terms.explicit_body
	message := "a body in braces after `not` can end the loop around it too early in WebAssembly"
	hint := "make the body a rule or a function, and negate that: `not _f(x)`, with `_f(x) if { … }`"
}
