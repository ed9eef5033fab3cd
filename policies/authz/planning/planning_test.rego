package authz.planning_test

import data.authz
import data.authz.planning

_rules := {
	"CITED": {"rule": "Medical answers cite", "purposes": ["medical"], "requires": ["answer", "cite"]},
	"ONE_SEARCH": {"tool": "search", "at_most": 1},
	"READ_FIRST": {"tool": "write", "only_after": ["read", "lookup"]},
}

_for(purpose, tools) := {"steps": [{"tool": tool} | some tool in tools], "context": {"purpose": purpose}}

_missing := ["planning.missing", {"rule": "CITED", "tools": ["cite"]}]

_cases := {
	"no step": {"plan": _for("chat", []), "deny": set()},
	"steps without a rule": {"plan": _for("chat", ["sing", "sing"]), "deny": set()},
	"all that is required": {"plan": _for("medical", ["cite", "answer"]), "deny": set()},
	"one of them": {"plan": _for("medical", ["answer"]), "deny": {_missing}},
	"none of them": {
		"plan": _for("medical", []),
		"deny": {["planning.missing", {"rule": "CITED", "tools": ["answer", "cite"]}]},
	},
	"another purpose": {"plan": _for("chat", ["answer"]), "deny": set()},
	"no purpose": {"plan": {"steps": [{"tool": "answer"}], "context": {}}, "deny": {_missing}},
	"the purpose null": {"plan": _for(null, ["answer"]), "deny": {_missing}},
	"the purpose empty": {"plan": _for("", ["answer"]), "deny": {_missing}},
	"as many as there may be": {"plan": _for("chat", ["search"]), "deny": set()},
	"one more": {
		"plan": _for("chat", ["search", "sing", "search"]),
		"deny": {["planning.too_many", {"rule": "ONE_SEARCH", "tool": "search", "calls": 2}]},
	},
	"in order": {"plan": _for("chat", ["lookup", "read", "write", "write"]), "deny": set()},
	"half of it before": {
		"plan": _for("chat", ["read", "write", "lookup"]),
		"deny": {["planning.out_of_order", {"rule": "READ_FIRST", "tool": "write", "first": ["lookup"]}]},
	},
	"a second one in order, the first not": {
		"plan": _for("chat", ["write", "read", "lookup", "write"]),
		"deny": {["planning.out_of_order", {"rule": "READ_FIRST", "tool": "write", "first": ["lookup", "read"]}]},
	},
	"several rules": {
		"plan": _for("medical", ["answer", "search", "search"]),
		"deny": {_missing, ["planning.too_many", {"rule": "ONE_SEARCH", "tool": "search", "calls": 2}]},
	},
}

test_rules[name] if {
	some name, case in _cases
	found := planning.deny with input as case.plan with data.directory.planning as _rules
	{[item.code, item.details] | some item in found} == case.deny
}

test_verdict[name] if {
	some name, case in _cases
	answer := authz.plan with input as case.plan with data.directory.planning as _rules with data.config.bundle as null
	answer == object.union(_answers[count(case.deny) == 0], {"reasons": answer.reasons})
	{[item.code, item.details] | some item in answer.reasons} == _expected(case)
}

_answers := {
	true: {"verdict": "ALLOW", "obligations": set(), "bundle": null},
	false: {"verdict": "DENY", "obligations": set(), "bundle": null},
}

_expected(case) := case.deny if count(case.deny) > 0

else := {["planning.acceptable", {"steps": count(case.plan.steps)}]}

_malformed_plans := {
	"nothing": null,
	"no steps": {"context": {}},
	"steps of another type": {"steps": {"tool": "read"}, "context": {}},
	"steps a text": {"steps": "read", "context": {}},
	"a step of another type": {"steps": ["read"], "context": {}},
	"a step null": {"steps": [null], "context": {}},
	"a step without tool": {"steps": [{"tool": "read"}, {}], "context": {}},
	"a tool of another type": {"steps": [{"tool": 1}], "context": {}},
	"a tool empty": {"steps": [{"tool": ""}], "context": {}},
	"no context": {"steps": [{"tool": "read"}]},
	"a context of another type": {"steps": [{"tool": "read"}], "context": "medical"},
	"a purpose of another type": {"steps": [{"tool": "read"}], "context": {"purpose": ["medical"]}},
}

test_malformed_plan[name] if {
	some name, plan in _malformed_plans
	answer := authz.plan with input as plan with data.directory.planning as _rules
	answer.verdict == "DENY"
	{item.code | some item in answer.reasons} == {"planning.request_invalid"}
}

_malformed_rules := {
	"of another type": "requires",
	"null": null,
	"empty": {},
	"misspelt": {"require": ["a"]},
	"of two forms": {"requires": ["a"], "tool": "b", "at_most": 1},
	"requires nothing": {"requires": []},
	"requires a text": {"requires": "a"},
	"requires a number": {"requires": [1]},
	"requires an empty name": {"requires": [""]},
	"at_most without tool": {"at_most": 1},
	"at_most a text": {"tool": "a", "at_most": "1"},
	"at_most below 0": {"tool": "a", "at_most": -1},
	"the tool empty": {"tool": "", "at_most": 1},
	"only_after nothing": {"tool": "a", "only_after": []},
	"only_after a text": {"tool": "a", "only_after": "b"},
	"only_after for no tool": {"tool": null, "only_after": ["b"]},
	"purposes a text": {"requires": ["a"], "purposes": "medical"},
	"purposes empty": {"requires": ["a"], "purposes": []},
	"purposes null": {"requires": ["a"], "purposes": null},
}

test_malformed_rule[name] if {
	some name, rule in _malformed_rules
	found := planning.deny with input as _for("medical", ["a", "b"]) with data.directory.planning as {"R": rule}
	{[item.code, item.details] | some item in found} == {["planning.rule_invalid", {"rule": "R"}]}
}

test_rules_of_another_type[name] if {
	some name, rules in {"list": [], "text": "R", "null": null, "false": false}
	found := planning.deny with input as _for("chat", ["a"]) with data.directory.planning as rules
	{item.code | some item in found} == {"planning.rules_invalid"}
}

test_without_rules if {
	found := planning.deny with input as _for("chat", ["a"]) with data.directory as {}
	found == set()
}
