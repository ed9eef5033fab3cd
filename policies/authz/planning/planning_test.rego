package authz.planning_test

import data.authz
import data.authz.lib.fixture_test as fixture
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

# A name that only resembles a tool or a purpose does not count. Every call and every missing tool counts.
_denied(plan, rule) := {item.code | some item in found} if {
	found := planning.deny with input as plan with data.directory.planning as {"R": rule}
}

test_near_a_tool if {
	every name in fixture.near("cite.source") {
		_denied(_for("chat", [name]), {"requires": ["cite.source"]}) == {"planning.missing"}
		_denied(_for("chat", ["cite.source"]), {"requires": [name]}) == {"planning.missing"}
		_denied(_for("chat", [name, "write"]), {"tool": "write", "only_after": ["cite.source"]}) == {"planning.out_of_order"}
		_denied(_for("chat", ["cite.source", "write"]), {"tool": "write", "only_after": [name]}) == {"planning.out_of_order"}
		_denied(_for("chat", [name, name]), {"tool": "cite.source", "at_most": 0}) == set()
	}
}

test_each_of_the_rules_purposes[name] if {
	some name in ["a", "b", "c", "d"]
	rule := {"requires": ["cite"], "purposes": ["a", "b", "c", "d"]}
	_denied(_for(name, ["answer"]), rule) == {"planning.missing"}
}

test_near_a_rules_purpose if {
	every name in fixture.near("medical.advice") {
		_denied(_for(name, ["answer"]), {"requires": ["cite"], "purposes": ["medical.advice"]}) == set()
		_denied(_for("medical.advice", ["answer"]), {"requires": ["cite"], "purposes": [name]}) == set()
		_denied(_for(name, ["answer"]), {"requires": ["cite"]}) == {"planning.missing"}
	}
}

test_any_rule_of_an_odd_name[id] if {
	some id in array.concat(fixture.odd, ["_", "X_1", "0", "", "test"])
	found := planning.deny with input as _for("chat", ["a", "a"]) with data.directory.planning as {id: {"tool": "a", "at_most": 1}}
	{item.details.rule | some item in found} == {id}
}

test_counts[most] if {
	some most in [0, 1, 2, 3, 5]
	every calls in [0, 1, 2, 3, 4, 5, 6, 7, 9] {
		tools := [tool | some at in numbers.range(0, 8); tool := ["sing", "search"][count({true | at < calls})]]
		code := {code | code := "planning.too_many"; calls > most}
		_denied(_for("chat", tools), {"tool": "search", "at_most": most}) == code
	}
}

test_each_of_many_tools[lost] if {
	many := ["a", "b", "c", "d", "e"]
	some lost in many
	rest := [tool | some tool in many; tool != lost]
	_denied(_for("chat", rest), {"requires": many}) == {"planning.missing"}
	_denied(_for("chat", array.concat(rest, ["write", lost])), {"tool": "write", "only_after": many}) == {"planning.out_of_order"}
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
