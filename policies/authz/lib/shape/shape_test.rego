package authz.lib.shape_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.shape

_valid := {
	"whole": [],
	"subject without attributes": [{"op": "replace", "path": "/subject/properties", "value": {}}],
	"resource with markings": [{"op": "add", "path": "/resource/properties/markings", "value": ["pii"]}],
	"context without anything": [{"op": "replace", "path": "/context", "value": {}}],
	"an approval": [{"op": "replace", "path": "/context/approval", "value": {}}],
	"an agent": [_act({"sub": "agent:a"})],
	"an agent with an issuer and entitlements": [_act({"sub": "a", "iss": "b", "entitlements": {"corpora": ["c"]}})],
	"an issuer": [{"op": "add", "path": "/subject/properties/iss", "value": "a"}],
	"no issuer": [{"op": "add", "path": "/subject/properties/iss", "value": null}],
	"four agents": [_act({"sub": "a", "act": {"sub": "b", "act": {"sub": "c", "act": {"sub": "d"}}}})],
	"unknown attributes": [{"op": "add", "path": "/subject/properties/tenant", "value": 7}],
	"a run of which nothing is known": [{"op": "add", "path": "/context/flow", "value": null}],
	"a run that has seen nothing": [fixture.followed({"tainted": false, "untrusted": []})],
	"a run with a plan": [fixture.followed({"plan": []})],
	"labelled arguments": [_labelled],
	"an argument that nobody brought": [_labelled, {"op": "replace", "path": "/context/flow/arguments/0/from", "value": []}],
	"sums": [fixture.spent([fixture.shown(0, 0), fixture.shown(0.01, 2), {"limit": "l", "problem": "p"}])],
	"a sum without an end": [fixture.spent([object.union(fixture.shown(0, 1), {"window_ends": null})])],
	"no sums": [fixture.spent([])],
	"a limit of zero": [{"op": "replace", "path": "/subject/properties/limits", "value": {"a": 0}}],
}

_act(value) := {"op": "replace", "path": "/subject/properties/act", "value": value}

# Every required attribute is replaced by each of these values.
_not_a_name := [null, "", 1, true, [], {}]

_names := [
	"/subject/type",
	"/subject/id",
	"/action/name",
	"/action/properties/tool",
	"/action/properties/manifest_version",
	"/action/properties/manifest_digest",
	"/resource/type",
	"/resource/id",
]

_not_strings := [null, "pii", 1, true, {}, {"pii": true}, [1], ["pii", null]]

_string_lists := [
	"/subject/properties/scopes",
	"/subject/properties/clearances",
	"/subject/properties/roles",
	"/subject/properties/entitlements/corpora",
	"/subject/properties/entitlements/documents",
	"/subject/properties/act/entitlements/corpora",
	"/subject/properties/act/entitlements/documents",
	"/resource/properties/markings",
]

_not_objects := [null, "x", 1, true, [], ["x"]]

_objects := [
	"/subject/properties",
	"/subject/properties/limits",
	"/subject/properties/entitlements",
	"/subject/properties/act/entitlements",
	"/action/properties",
	"/resource/properties",
	"/context",
	"/context/arguments",
]

_not_texts := [1, true, [], {}]

_texts := [
	"/subject/properties/iss",
	"/subject/properties/act/iss",
	"/context/agent",
	"/context/call_digest",
	"/context/idempotency_key",
	"/context/purpose",
	"/context/request_id",
	"/context/run_id",
	"/context/time",
]

_not_limits := ["25000", null, true, -1, [], {}]

_not_agents := [
	"agent:a",
	1,
	true,
	[],
	{},
	{"sub": ""},
	{"sub": 1},
	{"sub": "a", "scopes": "x"},
	{"sub": "a", "scopes": null},
	{"sub": "a", "clearances": [1]},
	{"sub": "a", "purposes": {}},
	{"sub": "a", "limits": []},
	{"sub": "a", "limits": {"l": "1"}},
	{"sub": "a", "act": "b"},
	{"sub": "a", "act": {}},
	{"sub": "a", "act": {"sub": "b", "act": {"sub": "c", "act": {"sub": "d", "act": {"sub": "e"}}}}},
]

_invalid contains [{"op": "add", "path": path, "value": value}] if {
	some path in _names
	some value in _not_a_name
}

_invalid contains [{"op": "remove", "path": path}] if some path in _names

# An agent at the path where one is expected.
_agent := _act({"sub": "agent:a", "entitlements": {}})

_invalid contains [_agent, {"op": "add", "path": path, "value": value}] if {
	some path in _string_lists
	some value in _not_strings
}

_invalid contains [_agent, {"op": "replace", "path": path, "value": value}] if {
	some path in _objects
	some value in _not_objects
}

_invalid contains [{"op": "remove", "path": path}] if {
	some path in ["/subject/properties", "/action/properties", "/resource/properties", "/context"]
}

_invalid contains [_agent, {"op": "add", "path": path, "value": value}] if {
	some path in _texts
	some value in _not_texts
}

_invalid contains [{"op": "add", "path": "/subject/properties/limits/x", "value": value}] if {
	some value in _not_limits
}

_invalid contains [_act(value)] if some value in _not_agents

_invalid contains [{"op": "add", "path": "/context/approval", "value": value}] if {
	some value in ["granted", 1, true, []]
}

# One argument of each role; the last one has a link.
_labelled := fixture.followed({"arguments": array.concat(
	[fixture.argument(role, ["prompt"]) | some role in ["address", "destination", "object", "url", "value"]],
	[object.union(
		fixture.argument("body", ["model"]),
		{"links": [{"sources": ["untrusted"], "from": [{"tool": "read_mail", "call": "call-1"}]}]},
	)],
)})

_body := "/context/flow/arguments/5"

# Invalid values for every field of `context.flow`.
_not_calls := [null, "x", {}, true, [null], ["x"], [[]]]

_flow_fields := {
	"/context/flow": ["x", 1, true, [], {}],
	"/context/flow/tainted": [null, "true", 1, [], {}],
	"/context/flow/anchored": [null, "true", 1, [], {}],
	"/context/flow/intended": [null, "true", 1, [], {}],
	"/context/flow/untrusted": _not_strings,
	"/context/flow/markings": _not_strings,
	"/context/flow/plan": ["x", 1, true, {}, [1], ["x", null]],
	"/context/flow/arguments": array.concat([1], _not_calls),
}

_argument_fields := {
	_body: [null, "x", 1, true, [], {}],
	$"{_body}/path": [null, 1, true, [], {}],
	$"{_body}/role": array.concat([null, 1, true, [], {}, ""], [name | some name in fixture.near("destination")]),
	$"{_body}/home": [null, "true", 1, [], {}],
	$"{_body}/sources": array.concat([[]], _not_strings),
	$"{_body}/from": _not_calls,
	$"{_body}/from/0/tool": [null, 1, true, [], {}],
	$"{_body}/from/0/call": [null, 1, true, [], {}],
	$"{_body}/links": _not_calls,
	$"{_body}/links/0/sources": array.concat([[]], _not_strings),
	$"{_body}/links/0/from": _not_calls,
	$"{_body}/links/0/from/0/tool": [null, 1, true, [], {}],
	$"{_body}/links/0/from/0/call": [null, 1, true, [], {}],
}

_invalid_flow contains [_labelled, {"op": "replace", "path": path, "value": value}] if {
	some path, values in _flow_fields
	some value in values
}

_invalid_arguments contains [_labelled, {"op": "replace", "path": path, "value": value}] if {
	some path, values in _argument_fields
	some value in values
}

_invalid_flow contains [_labelled, {"op": "remove", "path": path}] if {
	some path, _ in object.union(_flow_fields, _argument_fields)
	not path in ["/context/flow", _body]
}

_invalid_flow contains [_labelled, {"op": "add", "path": $"{path}/x", "value": null}] if {
	some path in ["/context/flow", _body, $"{_body}/from/0", $"{_body}/links/0", $"{_body}/links/0/from/0"]
}

_not_sums := [null, {}, "x", 1, [7], [null], ["x"], [{}], [{"limit": "l"}], [{"problem": "p"}]]

_invalid_sums contains [fixture.spent(value)] if some value in _not_sums

# The object has exactly these fields, and each has its type.
_invalid_sums contains [fixture.spent([fixture.shown(0, 1), object.union(fixture.shown(0, 1), {name: value})])] if {
	some name, values in {
		"limit": ["", 1, null], "used": [-0.01, "0", null], "amount": [-0.01, "1", null], "total": [-0.01, "1", null],
		"window_ends": [1, true, []], "problem": ["p"], "more": [1],
	}
	some value in values
}

_invalid_sums contains [fixture.spent([object.remove(fixture.shown(0, 1), [name])])] if {
	some name in object.keys(fixture.shown(0, 1))
}

_invalid_sums contains [fixture.spent([object.union({"limit": "l", "problem": "p"}, change)])] if {
	some change in [{"limit": ""}, {"limit": 1}, {"problem": ""}, {"problem": 1}, {"used": 0}]
}

test_valid[name] if {
	some name, patch in _valid
	shape.valid with input as fixture.changed(patch)
}

test_invalid[name] if {
	some patch in _invalid
	name := json.marshal(patch)
	not shape.valid with input as fixture.changed(patch)
}

test_invalid_flow[name] if {
	some patch in _invalid_flow
	name := json.marshal(patch)
	not shape.valid with input as fixture.changed(patch)
}

test_invalid_arguments[name] if {
	some patch in _invalid_arguments
	name := json.marshal(patch)
	not shape.valid with input as fixture.changed(patch)
}

test_invalid_sums[name] if {
	some patch in _invalid_sums
	name := json.marshal(patch)
	not shape.valid with input as fixture.changed(patch)
}

test_not_even_an_object[name] if {
	some value in [null, [], "x", 1, {}]
	name := json.marshal(value)
	not shape.valid with input as value
}

# Every element and every nested value is checked, and numbers are compared exactly.
test_the_last_of_many[name] if {
	some path in _string_lists
	some size in [1, 2, 3, 9]
	name := sprintf("%s after %d", [path, size])
	values := array.concat(["pii" | some _ in numbers.range(1, size)], [7])
	not shape.valid with input as fixture.changed([_agent, {"op": "add", "path": path, "value": values}])
}

test_a_limit_slightly_below_zero[name] if {
	some path in ["/subject/properties/limits", "/subject/properties/act/limits"]
	some value in [-0.0001, -0.0005, -0.01]
	name := sprintf("%s %v", [path, value])
	not shape.valid with input as fixture.changed([_agent, {"op": "add", "path": path, "value": {"a": 1, "b": 1, "c": value}}])
}
