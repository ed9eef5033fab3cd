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

test_provenance[name] if {
	some name, case in _cases
	found := provenance.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.deny
}
