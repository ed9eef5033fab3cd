# METADATA
# title: Planning
# description: |
#   Decides whether a whole plan is acceptable. Planning rules span several tools, and the planner owns them (tool contract
#   document). They are in the data, `directory.planning`, by their ids:
#
#       {"requires": [TOOL, ...]}              the plan contains each of these tools
#       {"tool": TOOL, "at_most": 1}           the plan has at most this many calls of the tool
#       {"tool": TOOL, "only_after": [TOOL]}   the tool comes after calls of all of these
#
#   A rule with `purposes: [...]` applies only to these purposes. `rule` is the text of the rule; it is optional.
package authz.planning

import data.authz.lib.reason
import data.authz.lib.shape
import rego.v2

# METADATA
# title: Plan's shape invalid
# description: The plan is not a list of steps with a tool each, or its purpose is not a string.
# custom:
#   code: planning.request_invalid
#   unreached: The enforcement point always builds plans of this shape.
deny contains reason.new(rego.metadata.rule(), {}) if not _shape_valid

# METADATA
# title: Planning rule invalid
# description: A planning rule in the data has a form that this policy does not know, so no plan can keep it.
# custom:
#   code: planning.rule_invalid
#   remedy: Correct the rule in `directory.planning`.
deny contains reason.new(rego.metadata.rule(), {"rule": id}) if {
	some id, rule in data.directory.planning
	not _known(rule)
}

# METADATA
# title: Planning rules invalid
# description: The planning rules in the data are not an object, so no plan can keep them.
# custom:
#   code: planning.rules_invalid
#   remedy: Write `directory.planning` as an object of rules by their ids.
deny contains reason.new(rego.metadata.rule(), {}) if {
	rules := data.directory.planning
	not is_object(rules)
}

# METADATA
# title: Tool missing
# description: The plan lacks required tools.
# custom:
#   code: planning.missing
#   remedy: Add the missing tools to the plan.
deny contains reason.new(rego.metadata.rule(), {"rule": id, "tools": missing}) if {
	some id, rule in _rules
	missing := sort([tool | some tool in rule.requires; not tool in _tools])
	count(missing) > 0
}

# METADATA
# title: Too many calls
# description: The plan has too many calls of a tool.
# custom:
#   code: planning.too_many
#   remedy: Remove calls of this tool from the plan.
deny contains reason.new(rego.metadata.rule(), {"rule": id, "tool": rule.tool, "calls": calls}) if {
	some id, rule in _rules
	calls := count([at | some at, tool in _tools; tool == rule.tool])
	calls > rule.at_most
}

# METADATA
# title: Out of order
# description: The plan has a call of a tool before the calls that have to come first.
# custom:
#   code: planning.out_of_order
#   remedy: Call the tools that have to come first before this tool.
deny contains reason.new(rego.metadata.rule(), {"rule": id, "tool": rule.tool, "first": first}) if {
	some id, rule in _rules
	at := min([place | some place, tool in _tools; tool == rule.tool])
	before := array.slice(_tools, 0, at)
	first := sort([tool | some tool in rule.only_after; not tool in before])
	count(first) > 0
}

# METADATA
# title: Acceptable
# description: The plan keeps every planning rule. Each of its calls is still decided separately.
# custom:
#   code: planning.acceptable
allow contains reason.new(rego.metadata.rule(), {"steps": count(_tools)}) if count(deny) == 0

_shape_valid if {
	is_array(input.steps)
	every step in input.steps {
		shape.named(step.tool)
	}
	is_object(input.context)
	_text_or_null(_purpose)
}

_purpose := object.get(input.context, "purpose", null)

_text_or_null(value) if is_string(value)

_text_or_null(value) if is_null(value)

# The rules that apply to this plan. The shapes are checked first: a builtin that gets a wrong type is an error in OPA and
# undefined in WebAssembly.
_rules[id] := rule if {
	_shape_valid
	some id, rule in data.directory.planning
	_known(rule)
	_meant(rule)
}

_tools := [step.tool | some step in input.steps]

_meant(rule) if not "purposes" in object.keys(rule)

# A plan without a purpose does not evade a rule.
_meant(_) if not shape.named(_purpose)

_meant(rule) if _purpose in rule.purposes

_known(rule) if {
	is_object(rule)
	_purposes_known(rule)
	_form_known(rule, object.keys(rule) - {"rule", "purposes"})
}

_purposes_known(rule) if not "purposes" in object.keys(rule)

_purposes_known(rule) if _names(rule.purposes)

_form_known(rule, {"requires"}) if _names(rule.requires)

_form_known(rule, {"tool", "at_most"}) if {
	shape.named(rule.tool)
	is_number(rule.at_most)
	rule.at_most >= 0
}

_form_known(rule, {"tool", "only_after"}) if {
	shape.named(rule.tool)
	_names(rule.only_after)
}

_names(values) if {
	is_array(values)
	count(values) > 0
	every value in values {
		shape.named(value)
	}
}
