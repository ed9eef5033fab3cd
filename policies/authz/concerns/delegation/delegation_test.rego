package authz.concerns.delegation_test

import data.authz.concerns.delegation
import data.authz.lib.fixture_test as fixture

_act(act) := {"op": "replace", "path": "/subject/properties/act", "value": act}

_marked(values) := {"op": "add", "path": "/resource/properties/markings", "value": values}

_purpose(value) := {"op": "replace", "path": "/context/purpose", "value": value}

_payments(more) := object.union({"sub": "agent:payments", "scopes": ["payments.wire.initiate"]}, more)

_exceeds(agent, missing, others) := {["delegation.exceeds_agent", {
	"agent": agent,
	"exceeded": sort(object.keys(missing) | others),
	"missing": missing,
}]}

_scope := {"scopes": ["payments.wire.initiate"]}

_clearance := {"clearances": ["pii"]}

_cases := {
	"nobody acts": {"patch": [], "entry": {}, "deny": set()},
	"the agent holds the scope": {"patch": [_act(_payments({}))], "entry": {}, "deny": set()},
	"the agent lacks it": {
		"patch": [_act(_payments({"scopes": ["payments.lookup"]}))], "entry": {},
		"deny": _exceeds("agent:payments", _scope, set()),
	},
	"an agent without scopes has none": {
		"patch": [_act({"sub": "agent:payments"})], "entry": {},
		"deny": _exceeds("agent:payments", _scope, set()),
	},
	"a tool without scopes asks nothing of the agent": {
		"patch": [_act({"sub": "agent:payments"})], "entry": {"scopes": []},
		"deny": set(),
	},
	"a nested agent counts as well": {
		"patch": [_act(_payments({"act": {"sub": "agent:inner", "scopes": []}}))], "entry": {},
		"deny": _exceeds("agent:inner", _scope, set()),
	},
	"each agent is a finding of its own": {
		"patch": [_act({"sub": "agent:outer", "act": {"sub": "agent:inner"}})], "entry": {},
		"deny": (_exceeds("agent:outer", _scope, set()) | _exceeds("agent:inner", _scope, set())),
	},
	"as far down as the fourth": {
		"patch": [_act(_payments({"act": _payments({"act": _payments({"act": {"sub": "agent:fourth"}})})}))], "entry": {},
		"deny": _exceeds("agent:fourth", _scope, set()),
	},
	"clearances where the agent states none": {
		"patch": [_act(_payments({})), _marked(["pii"])], "entry": {"markings": ["pii"]},
		"deny": set(),
	},
	"clearances that it lacks": {
		"patch": [_act(_payments({"clearances": ["other"]})), _marked(["pii"])], "entry": {"markings": ["pii"]},
		"deny": _exceeds("agent:payments", _clearance, set()),
	},
	"clearances for markings that nobody knows": {
		"patch": [_act(_payments({"clearances": []}))], "entry": {"markings": ["pii"]},
		"deny": _exceeds("agent:payments", _clearance, set()),
	},
	"clearances that it holds": {
		"patch": [_act(_payments({"clearances": ["pii"]}))], "entry": {"markings": ["pii"]},
		"deny": set(),
	},
	"a purpose that it was not given": {
		"patch": [_act(_payments({"purposes": ["payments.supplier"]})), _purpose("marketing")], "entry": {},
		"deny": _exceeds("agent:payments", {}, {"purposes"}),
	},
	"no purpose where it was given some": {
		"patch": [_act(_payments({"purposes": ["payments.supplier"]}))], "entry": {},
		"deny": _exceeds("agent:payments", {}, {"purposes"}),
	},
	"entitlements where the agent states none": {
		"patch": [fixture.of("corpus", "hr"), _act(_payments({}))], "entry": {},
		"deny": set(),
	},
	"entitlements that it lacks": {
		"patch": [fixture.of("corpus", "hr"), _act(_payments({"entitlements": {"corpora": ["it"]}}))], "entry": {},
		"deny": _exceeds("agent:payments", {}, {"entitlements"}),
	},
	"entitlements that are stated and empty": {
		"patch": [fixture.of("corpus", "hr"), _act(_payments({"entitlements": {}}))], "entry": {},
		"deny": _exceeds("agent:payments", {}, {"entitlements"}),
	},
	"entitlements that it holds": {
		"patch": [fixture.of("corpus", "hr"), _act(_payments({"entitlements": {"corpora": ["hr"]}}))], "entry": {},
		"deny": set(),
	},
	"entitlement to a document by its corpus": {
		"patch": [fixture.of("document", "handbook"), _act(_payments({"entitlements": {"corpora": ["hr"]}}))],
		"entry": {},
		"deny": set(),
	},
	"but not to a restricted one": {
		"patch": [fixture.of("document", "sealed"), _act(_payments({"entitlements": {"corpora": ["hr"]}}))],
		"entry": {},
		"deny": _exceeds("agent:payments", {}, {"entitlements"}),
	},
	"the directory does not entitle an agent that states its own": {
		"patch": [fixture.of("corpus", "legal"), _act(_payments({"entitlements": {"corpora": ["hr"]}}))],
		"entry": {},
		"deny": _exceeds("agent:payments", {}, {"entitlements"}),
	},
	"entitlements that nothing asks for": {
		"patch": [_act(_payments({"entitlements": {}}))], "entry": {},
		"deny": set(),
	},
	"clearances for the directory's markings": {
		"patch": [fixture.of("corpus", "marked"), _act(_payments({"clearances": []}))], "entry": {},
		"deny": _exceeds("agent:payments", _clearance, set()),
	},
	"a purpose that it was given": {
		"patch": [_act(_payments({"purposes": ["payments.supplier"]})), _purpose("payments.supplier")], "entry": {},
		"deny": set(),
	},
}

_directory := {
	"corpora": {"marked": {"markings": ["pii"]}},
	"documents": {"handbook": {"corpus": "hr"}, "sealed": {"corpus": "hr", "restricted": true}},
	"entitlements": {"agent:payments": {"corpora": ["legal"]}, "officer-123": {"corpora": ["legal"]}},
}

test_delegation[name] if {
	some name, case in _cases
	found := delegation.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])
		with data.directory as _directory

	fixture.brief(found) == case.deny
}

# A name that only resembles the needed one does not count, for subject and agent alike.
_needs := {
	"scopes": {"patch": [], "entry": {"scopes": ["pay.wire"]}},
	"clearances": {"patch": [_marked(["pay.wire"])], "entry": {"scopes": []}},
	"purposes": {"patch": [_purpose("pay.wire")], "entry": {"scopes": []}},
	"entitlements": {"patch": [fixture.of("corpus", "pay.wire")], "entry": {"scopes": []}},
}

_stated(attribute, names) := {"sub": "a", attribute: names} if attribute != "entitlements"

_stated("entitlements", names) := {"sub": "a", "entitlements": {"corpora": names}}

_near_missing := {"scopes": {"scopes": ["pay.wire"]}, "clearances": {"clearances": ["pay.wire"]}, "purposes": {}, "entitlements": {}}

test_near_what_the_call_needs[attribute] if {
	some attribute, case in _needs
	every near in {[name] | some name in fixture.near("pay.wire")} | {[], ["pay", "wire"], ["pay.", "wire"]} {
		_denied(case, _stated(attribute, near)) == _exceeds("a", _near_missing[attribute], {attribute})
	}
	_denied(case, _stated(attribute, ["pay", "pay.wire"])) == set()
}

test_a_near_scope_of_the_tool if {
	every name in fixture.near("pay.wire") {
		_denied({"patch": [], "entry": {"scopes": [name]}}, _stated("scopes", ["pay.wire"])) == _exceeds("a", {"scopes": [name]}, set())
	}
}

_denied(case, agent) := fixture.brief(found) if {
	found := delegation.deny with input as fixture.changed(array.concat(case.patch, [_act(agent)]))
		with data.manifests as fixture.manifests(case.entry, [])
		with data.directory as {}
}

# The details list everything that an agent lacks.
test_several_at_once if {
	agent := {"sub": "a", "scopes": [], "clearances": [], "purposes": [], "entitlements": {}}
	patch := [fixture.of("corpus", "hr"), _marked(["pii"])]
	_denied({"patch": patch, "entry": {}}, agent) == _exceeds("a", object.union(_scope, _clearance), {"entitlements", "purposes"})
	_denied({"patch": patch, "entry": {"scopes": []}}, agent) == _exceeds("a", _clearance, {"entitlements", "purposes"})
	_denied({"patch": [_marked(["pii"])], "entry": {"scopes": []}}, agent) == _exceeds("a", _clearance, {"purposes"})
}

test_each_of_many[lost] if {
	many := ["a", "b", "c", "d", "e"]
	some lost in many
	rest := [name | some name in many; name != lost]
	_denied({"patch": [], "entry": {"scopes": many}}, {"sub": "a", "scopes": rest}) == _exceeds("a", {"scopes": [lost]}, set())
	_denied({"patch": [_marked(many)], "entry": {"scopes": []}}, {"sub": "a", "clearances": rest}) == _exceeds("a", {"clearances": [lost]}, set())
}

test_what_is_missing_is_sorted if {
	agent := {"sub": "a", "scopes": ["c"], "clearances": []}
	case := {"patch": [_marked(["z", "y", "x"])], "entry": {"scopes": ["d", "c", "b", "a"]}}
	_denied(case, agent) == _exceeds("a", {"scopes": ["a", "b", "d"], "clearances": ["x", "y", "z"]}, set())
}
