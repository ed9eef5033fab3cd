# METADATA
# title: Conventions of policies
# description: |
#   Finds Rego that OPA accepts but that the decision would misread or ignore. Each package under `checks.rules` is one
#   check. It is found by its path, and its set `findings` has its objections.
#   `input` is `{modules, builtins, tests, scenario_codes, records, values, rules, integers}`:
#   `modules`: the policy's files without tests, each `{file, source, tree}`: the path in the bundle, the author's file, and
#   the tree with locations from `opa parse --format json`, which also has the rules without METADATA.
#   `builtins`: the declarations of the allowed builtins, by name.
#   `tests`: the test files, each `{tree}`; null where they are not checked.
#   `scenario_codes`: the reason codes that scenarios expect; null where they are not checked.
#   `records`: the names of members in the request and the data, by dotted path. `values`: all texts that a path can have.
#   `rules`: every rule of all modules. `integers`: the paths below which all numbers are whole.
package checks

# METADATA
# title: Findings
# description: Each is `{check, file, line, column, message, hint}`; line and column count from 1.
findings contains object.union(finding, {"check": check}) if {
	some check
	some finding in data.checks.rules[check].findings
}
