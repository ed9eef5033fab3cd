# METADATA
# title: Conventions of policies
# description: |
#   What OPA accepts and the decision would misread, or lose without a word. Every package under `checks.rules` is one
#   check, found by its path; its set `findings` has what it objects to.
#   `input` is `{modules, builtins, tests, scenario_codes, records, values, rules, integers}`:
#   `modules` the policy's files without tests, each `{file, source, tree}`: the path in the bundle, the author's file, and
#   the tree as `opa parse --format json` writes it with locations, which shows rules without METADATA as well; `builtins` the admitted builtins' declarations by name; `tests` the test files, each `{tree}`;
#   `scenario_codes` the reason codes that scenarios expect. These two are null where nobody asks for them. `records` has the
#   names of members in the request and the data by dotted path, `values` all texts that may stand at some, `rules` every rule of all modules,
#   and `integers` the paths below which all numbers are whole.
package checks

# METADATA
# title: Findings
# description: Each is `{check, file, line, column, message, hint}`; line and column count from 1.
findings contains object.union(finding, {"check": check}) if {
	some check
	some finding in data.checks.rules[check].findings
}
