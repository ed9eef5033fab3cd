package authz.concerns.markings_test

import data.authz.concerns.markings
import data.authz.lib.fixture_test as fixture

_marked(values) := {"op": "add", "path": "/resource/properties/markings", "value": values}

_cleared(values) := {"op": "replace", "path": "/subject/properties/clearances", "value": values}

_cases := {
	"an unmarked resource": {"patch": [_marked([])], "entry": {"markings": ["pii.medium"]}, "deny": set()},
	"cleared, and the tool may touch it": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {"markings": ["pii.medium"]},
		"deny": set(),
	},
	"not cleared": {
		"patch": [_marked(["pii.medium", "regulated"]), _cleared(["pii.medium"])],
		"entry": {"markings": ["pii.medium", "regulated"]},
		"deny": {["markings.not_cleared", {"missing": ["regulated"]}]},
	},
	"cleared, but the tool may not touch it": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {"markings": []},
		"deny": {["markings.not_allowed", {"markings": ["pii.medium"]}]},
	},
	"a tool that declares no markings touches unmarked data only": {
		"patch": [_marked(["pii.medium"]), _cleared(["pii.medium"])],
		"entry": {},
		"deny": {["markings.not_allowed", {"markings": ["pii.medium"]}]},
	},
	"unknown markings count as all that the tool may touch": {
		"patch": [_cleared(["pii.medium"])],
		"entry": {"markings": ["pii.high", "pii.medium"]},
		"deny": {["markings.not_cleared", {"missing": ["pii.high"]}]},
	},
	"a subject without the attribute is cleared for nothing": {
		"patch": [{"op": "remove", "path": "/subject/properties/clearances"}],
		"entry": {"markings": ["pii.medium"]},
		"deny": {["markings.not_cleared", {"missing": ["pii.medium"]}]},
	},
}

test_markings[name] if {
	some name, case in _cases
	found := markings.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}

# The markings of the directory count like those of the request.
_directories := {
	"cleared for the corpus": {
		"corpus": {"markings": ["pii"]}, "clearances": ["pii"], "entry": ["pii"], "deny": set(),
	},
	"not cleared for the corpus": {
		"corpus": {"markings": ["secret", "pii"]}, "clearances": [], "entry": ["pii", "secret"],
		"deny": {["markings.not_cleared", {"missing": ["pii", "secret"]}]},
	},
	"the tool may not touch the corpus": {
		"corpus": {"markings": ["secret", "pii"]}, "clearances": ["pii", "secret"], "entry": [],
		"deny": {["markings.not_allowed", {"markings": ["pii", "secret"]}]},
	},
	"mistyped": {
		"corpus": {"markings": "pii"}, "clearances": ["pii"], "entry": ["pii"],
		"deny": {["markings.unreadable", {"type": "corpus", "id": "hr"}]},
	},
}

test_directory[name] if {
	some name, case in _directories
	found := markings.deny with input as fixture.changed([fixture.of("corpus", "hr"), _cleared(case.clearances)])
		with data.manifests as fixture.manifests({"markings": case.entry}, [])
		with data.directory as {"corpora": {"hr": case.corpus}}

	fixture.brief(found) == case.deny
}

_result_marked(values) := {{"id": "mark_result", "on": "ALLOW", "parameters": {"markings": values}}}

_obligations := {
	"a search": {"patch": [_marked(["b", "a"])], "entry": {"pattern": "search"}, "obligations": _result_marked(["a", "b"])},
	"an aggregation": {"patch": [_marked(["a"])], "entry": {"pattern": "aggregation"}, "obligations": _result_marked(["a"])},
	"an aggregation over data of unknown markings": {
		"patch": [], "entry": {"pattern": "aggregation", "markings": ["a"]},
		"obligations": _result_marked(["a"]),
	},
	"a corpus": {"patch": [fixture.of("corpus", "hr")], "entry": {}, "obligations": _result_marked(["c"])},
	"a document": {"patch": [fixture.of("document", "handbook")], "entry": {}, "obligations": _result_marked(["c", "d"])},
	"an unmarked corpus": {"patch": [fixture.of("corpus", "it")], "entry": {"pattern": "search"}, "obligations": set()},
	"something else": {"patch": [_marked(["a"])], "entry": {"pattern": "lookup"}, "obligations": set()},
	"something else without a pattern": {"patch": [_marked(["a"])], "entry": {}, "obligations": set()},
}

test_obligations[name] if {
	some name, case in _obligations
	found := markings.obligations with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])
		with data.directory as {
			"corpora": {"hr": {"markings": ["c"]}, "it": {"markings": []}},
			"documents": {"handbook": {"corpus": "hr", "markings": ["d"]}},
		}

	found == case.obligations
}

_deny(marked, cleared, touched) := fixture.brief(found) if {
	found := markings.deny with input as fixture.changed([_marked(marked), _cleared(cleared)])
		with data.manifests as fixture.manifests({"markings": touched}, [])
}

# A name that only resembles a marking neither clears it nor allows it.
test_near_a_marking if {
	every near in fixture.near("pii.high") {
		every pair in [["pii.high", near], [near, "pii.high"]] {
			_deny([pair[0]], [pair[1]], pair) == {["markings.not_cleared", {"missing": [pair[0]]}]}
			_deny([pair[0]], pair, [pair[1]]) == {["markings.not_allowed", {"markings": [pair[0]]}]}
		}
	}
}

# Two markings with the same beginning are different.
test_a_neighbour_of_a_marking if {
	_deny(["pii.high"], ["pii.low", "pii"], ["pii.high"]) == {["markings.not_cleared", {"missing": ["pii.high"]}]}
	_deny(["pii.high"], ["pii.high"], ["pii.low", "pii"]) == {["markings.not_allowed", {"markings": ["pii.high"]}]}
}

# Every marking counts, and the details list all that are missing.
test_each_of_many_markings[name] if {
	many := ["a", "b", "c", "d", "e"]
	some lost in [["a"], ["b"], ["c"], ["d"], ["e"], ["a", "b"], ["a", "c", "e"], many]
	name := json.marshal(lost)
	rest := [marking | some marking in many; not marking in lost]
	_deny(many, rest, many) == {["markings.not_cleared", {"missing": lost}]}
	_deny(many, many, rest) == {["markings.not_allowed", {"markings": lost}]}
}

test_a_result_has_every_marking[size] if {
	some size in [1, 2, 3, 4, 9]
	values := sort([sprintf("m%d", [number]) | some number in numbers.range(1, size)])
	found := markings.obligations with input as fixture.changed([_marked(values)])
		with data.manifests as fixture.manifests({"pattern": "search", "markings": []}, [])

	found == _result_marked(values)
}
