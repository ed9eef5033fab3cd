# METADATA
# title: Form of reasons
# description: |
#   The parts of a concern contain reasons `{code, message, details}`, optionally with a `remedy`, or obligations
#   `{id, on, parameters}`. With other values the decision can only deny with `decision.reason_malformed`. The check reads
#   literals in the head of a rule, and not the values of functions and variables.
package checks.rules.reason_form

import data.checks.lib.modules

# METADATA
# title: Findings
# description: Elements of a concern's parts that do not have the form of a reason or an obligation.
findings contains modules.finding(file, rule.head.key, message, hint) if {
	some file, concern in modules.concerns
	some rule in concern.tree.rules
	part := modules.name(rule)
	part in modules.parts
	message := _wrong(rule, part)
	hint := _hint(part)
}

_wrong(rule, part) := $"an element of `{part}` must be {_kind(part)}" if {
	_scalar_or_collection(rule.head.key)
} else := $"{_kind(part)} has exactly the keys {concat(", ", sort(_keys(part)))}" if {
	rule.head.key.type == "object"
	{key.value | some [key, _] in rule.head.key.value} - _optional_keys(part) != _keys(part)
} else := $"the reason's code is not `{code}`, which the rule's METADATA states" if {
	part != "obligations"
	code := modules.code(rule)
	some [key, value] in rule.head.key.value
	key.value == "code"
	value.type == "string"
	value.value != code
} else := "an obligation is `on` ALLOW, DENY or STEP_UP" if {
	part == "obligations"
	some [key, value] in rule.head.key.value
	key.value == "on"
	value.type in _literals
	not value.value in {"ALLOW", "DENY", "STEP_UP"}
}

_scalar_or_collection(term) if term.type in _literals

_scalar_or_collection(term) if {
	term.type in {"array", "set", "arraycomprehension", "setcomprehension", "objectcomprehension", "templatestring"}
}

_literals := {"null", "boolean", "number", "string"}

_kind("obligations") := "an obligation"

_kind(part) := "a reason" if part != "obligations"

_keys("obligations") := {"id", "on", "parameters"}

_keys(part) := {"code", "message", "details"} if part != "obligations"

_optional_keys("obligations") := set()

_optional_keys(part) := {"remedy"} if part != "obligations"

_hint("obligations") := "write `obligations contains {\"id\": …, \"on\": \"ALLOW\", \"parameters\": {…}} if { … }`"

_hint(part) := concat("", [
	"write `", part, " contains reason.new(rego.metadata.rule(), {…}) if { … }`, with `import data.authz.lib.reason`",
]) if {
	part != "obligations"
}
