package authz.concerns.documents_test

import data.authz.concerns.documents
import data.authz.lib.fixture_test as fixture

_entitled_to(corpora, names) := {
	"op": "replace", "path": "/subject/properties/entitlements",
	"value": {"corpora": corpora, "documents": names},
}

_no_claims := {"op": "remove", "path": "/subject/properties/entitlements"}

_refused(type, id) := {["documents.not_entitled", {"type": type, "id": id}]}

_handbook := {"documents": {"handbook": {"corpus": "hr"}}}

_sealed(value) := {"documents": {"handbook": {"corpus": "hr", "restricted": value}}}

_granted(value) := {"entitlements": {"officer-123": value}}

_cases := {
	"a resource of another kind": {"patch": [], "entry": {}, "directory": {}, "deny": set()},
	"a corpus by claim": {
		"patch": [fixture.of("corpus", "hr"), _entitled_to(["it", "hr"], [])], "entry": {}, "directory": {},
		"deny": set(),
	},
	"a corpus by directory": {
		"patch": [fixture.of("corpus", "hr")], "entry": {}, "directory": _granted({"corpora": ["hr"]}),
		"deny": set(),
	},
	"a corpus by directory, without any claim": {
		"patch": [fixture.of("corpus", "hr"), _no_claims], "entry": {}, "directory": _granted({"corpora": ["hr"]}),
		"deny": set(),
	},
	"another corpus": {
		"patch": [fixture.of("corpus", "hr"), _entitled_to(["it"], [])], "entry": {},
		"directory": _granted({"corpora": ["legal"]}),
		"deny": _refused("corpus", "hr"),
	},
	"somebody else": {
		"patch": [fixture.of("corpus", "hr")], "entry": {},
		"directory": {"entitlements": {"officer-124": {"corpora": ["hr"]}}},
		"deny": _refused("corpus", "hr"),
	},
	"a document of the corpus's name is another thing": {
		"patch": [fixture.of("corpus", "hr"), _entitled_to([], ["hr"])], "entry": {}, "directory": {},
		"deny": _refused("corpus", "hr"),
	},
	"no claim and no directory": {
		"patch": [fixture.of("corpus", "hr"), _no_claims], "entry": {}, "directory": {},
		"deny": _refused("corpus", "hr"),
	},
	"a document by claim": {
		"patch": [fixture.of("document", "handbook"), _entitled_to([], ["handbook"])], "entry": {},
		"directory": _sealed(true),
		"deny": set(),
	},
	"a document by directory": {
		"patch": [fixture.of("document", "handbook")], "entry": {}, "directory": _granted({"documents": ["handbook"]}),
		"deny": set(),
	},
	"a document by its corpus": {
		"patch": [fixture.of("document", "handbook"), _entitled_to(["hr"], [])], "entry": {}, "directory": _handbook,
		"deny": set(),
	},
	"a document by its corpus, of the directory": {
		"patch": [fixture.of("document", "handbook")], "entry": {},
		"directory": object.union(_handbook, _granted({"corpora": ["hr"]})),
		"deny": set(),
	},
	"expressly not restricted": {
		"patch": [fixture.of("document", "handbook"), _entitled_to(["hr"], [])], "entry": {}, "directory": _sealed(false),
		"deny": set(),
	},
	"restricted: the corpus is not enough": {
		"patch": [fixture.of("document", "handbook"), _entitled_to(["hr"], [])], "entry": {}, "directory": _sealed(true),
		"deny": _refused("document", "handbook"),
	},
	"of another corpus": {
		"patch": [fixture.of("document", "handbook"), _entitled_to(["it"], ["other"])], "entry": {},
		"directory": _handbook,
		"deny": _refused("document", "handbook"),
	},
	"a document that nobody knows is of no corpus": {
		"patch": [fixture.of("document", "leaflet"), _entitled_to(["hr"], [])], "entry": {}, "directory": _handbook,
		"deny": _refused("document", "leaflet"),
	},
	"the directory's document is none for a corpus of that name": {
		"patch": [fixture.of("corpus", "handbook"), _entitled_to(["hr"], [])], "entry": {}, "directory": _handbook,
		"deny": _refused("corpus", "handbook"),
	},
	"a search of an entitled corpus": {
		"patch": [fixture.of("corpus", "hr"), _entitled_to(["hr"], [])], "entry": {"pattern": "search"}, "directory": {},
		"deny": set(),
	},
	"a search of something else": {
		"patch": [_entitled_to(["bene-acme-441"], ["bene-acme-441"])], "entry": {"pattern": "search"}, "directory": {},
		"deny": _refused("wire_payment", "bene-acme-441"),
	},
	"another pattern on something else": {
		"patch": [], "entry": {"pattern": "aggregation"}, "directory": {},
		"deny": set(),
	},
}

test_documents[name] if {
	some name, case in _cases
	found := documents.deny with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, [])
		with data.directory as case.directory

	fixture.brief(found) == case.deny
}

test_no_directory_at_all if {
	found := documents.deny with input as fixture.changed([fixture.of("document", "handbook"), _entitled_to(["hr"], [])])
		with data.manifests as fixture.manifests({}, [])

	found == {{
		"code": "documents.not_entitled",
		"message": "The subject is not entitled to this corpus or document.",
		"details": {"type": "document", "id": "handbook"},
		"remedy": "Ask for an entitlement, in the claim `entitlements` or the directory. A search names a corpus or a document.",
	}}
}

# Malformed entitlements entitle to nothing, although each of them contains the id.
_not_a_list := ["hr", {"hr": true}, {"corpora": "hr"}, [["hr"]], ["hr", 1], ["hr", null], null, true, 1]

_not_an_entitlement contains _granted({"corpora": value}) if some value in _not_a_list

_not_an_entitlement contains _granted(value) if some value in [["hr"], "hr", null, true, 1, {"hr": {}}]

_not_an_entitlement contains {"entitlements": value} if {
	some value in [["officer-123"], "officer-123", null, true, {"officer-123": true}]
}

_not_an_entitlement contains value if some value in [["entitlements"], "hr", null, true, 1]

test_mistyped_entitlements[name] if {
	some directory in _not_an_entitlement
	name := json.marshal(directory)
	found := documents.deny with input as fixture.changed([fixture.of("corpus", "hr")])
		with data.manifests as fixture.manifests({}, [])
		with data.directory as directory

	fixture.brief(found) == _refused("corpus", "hr")
}

_not_a_document contains _sealed(value) if some value in ["false", "no", null, 0, [], {}]

_not_a_document contains {"documents": {"handbook": {"corpus": value}}} if {
	some value in [["hr"], {"hr": "hr"}, null, true, 0]
}

_not_a_document contains {"documents": {"handbook": value}} if some value in ["hr", ["hr"], [{"corpus": "hr"}], null, true]

_not_a_document contains {"documents": value} if some value in ["handbook", [{"corpus": "hr"}], null, true]

test_mistyped_documents[name] if {
	some directory in _not_a_document
	name := json.marshal(directory)
	found := documents.deny with input as fixture.changed([fixture.of("document", "handbook"), _entitled_to(["hr"], [])])
		with data.manifests as fixture.manifests({}, [])
		with data.directory as directory

	fixture.brief(found) == _refused("document", "handbook")
}

_pinned := {
	"search": {{"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}}},
	"aggregation": set(),
	"lookup": set(),
}

test_obligations[pattern] if {
	some pattern, expected in _pinned
	found := documents.obligations with input as fixture.changed([fixture.of("corpus", "hr")])
		with data.manifests as fixture.manifests({"pattern": pattern}, [])

	found == expected
}

test_no_pattern_no_obligation if {
	found := documents.obligations with input as fixture.changed([fixture.of("corpus", "hr")])
		with data.manifests as fixture.manifests({}, [])

	found == set()
}

# A subject whose name resembles an entitled one is not entitled.
test_near_a_subject_of_the_directory[name] if {
	some near in fixture.near("officer-123")
	some pair in [["officer-123", near], [near, "officer-123"]]
	name := json.marshal(pair)
	found := documents.deny with data.directory as {"entitlements": {pair[0]: {"corpora": ["hr"]}}}
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed([
			fixture.of("corpus", "hr"),
			{"op": "replace", "path": "/subject/id", "value": pair[1]},
		])

	fixture.brief(found) == _refused("corpus", "hr")
}
