package authz.concerns.provenance_test

import data.authz.concerns.provenance
import data.authz.lib.fixture_test as fixture

_sources(value) := [{"op": "add", "path": "/context/arguments/source_ids", "value": value}]

_needed := {"provenance": {"required": ["source_ids"]}}

_missing := {["provenance.missing", {"missing": ["source_ids"]}]}

_cases := {
	"none needed": {"patch": [], "entry": {}, "deny": set()},
	"there": {"patch": _sources(["doc-7"]), "entry": _needed, "deny": set()},
	"a single one": {"patch": _sources("doc-7"), "entry": _needed, "deny": set()},
	"zero is a value": {"patch": _sources(0), "entry": _needed, "deny": set()},
	"absent": {"patch": [], "entry": _needed, "deny": _missing},
	"no arguments": {"patch": [{"op": "remove", "path": "/context/arguments"}], "entry": _needed, "deny": _missing},
	"null": {"patch": _sources(null), "entry": _needed, "deny": _missing},
	"empty list": {"patch": _sources([]), "entry": _needed, "deny": _missing},
	"empty string": {"patch": _sources(""), "entry": _needed, "deny": _missing},
	"empty object": {"patch": _sources({}), "entry": _needed, "deny": _missing},
	"false": {"patch": _sources(false), "entry": _needed, "deny": _missing},
}

# Each value names nothing, or has a part that names nothing. Every listed source needs an id.
_hollow := [
	" ", "\t\r\n", "\u00a0\u2003\u3000\u0085\u1680\u2028\u2029\u202f\u205f\u000b\u000c",
	[""], ["  "], [null], [[]], [{}], [false], ["doc-7", ""], ["doc-7", null], [["doc-7"], [[]]], [[[" "]]],
	{"id": null}, {"id": ""}, {"id": "doc-7", "page": " "}, {"id": [""]}, [{"id": "doc-7"}, {"id": null}],
	[[[[[""]]]]], [[[[["doc-7"]]]]],
]

_naming := [
	" doc-7 ", "\u200b7", 7, 0, true, ["doc-7", 0, true], [["doc-7"]], {"id": "doc-7"}, {"": "doc-7"}, [{"id": ["doc-7"]}],
	[[[["doc-7"]]]], [{"at": {"page": [7]}}],
]

test_hollow_sources_are_none[name] if {
	some value in _hollow
	name := json.marshal(value)
	_found(value) == _missing
}

test_whatever_names_something_is_a_source[name] if {
	some value in _naming
	name := json.marshal(value)
	_found(value) == set()
}

_found(value) := fixture.brief(found) if {
	found := provenance.deny with input as fixture.changed(_sources(value))
		with data.manifests as fixture.manifests(_needed, [])
}

test_provenance[name] if {
	some name, case in _cases
	found := provenance.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}

# The details list every missing source.
test_each_of_many_sources[name] if {
	many := ["a", "b", "c", "d", "e"]
	some lost in [["a"], ["b"], ["c"], ["d"], ["e"], ["a", "b"], ["b", "c", "d"], ["a", "b", "c", "e"], many]
	name := json.marshal(lost)
	sources := {source: "doc-7" | some source in many; not source in lost}
	found := provenance.deny with input as fixture.changed([{"op": "replace", "path": "/context/arguments", "value": sources}])
		with data.manifests as fixture.manifests({"provenance": {"required": many}}, [])

	fixture.brief(found) == {["provenance.missing", {"missing": lost}]}
}

# An empty part is found on every level.
test_each_of_many_parts[name] if {
	some level in [1, 2, 3, 4]
	some place in [0, 1, 2, 4]
	parts := [part | some at in [0, 1, 2, 3, 4]; part := ["doc-7", " "][count({true | at == place})]]
	second := [parts, [parts], [[parts]], [[[parts]]]][level - 1]
	name := json.marshal(second)
	_found(second) == _missing
}
