package authz.lib.resource_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.resource

_marked(values) := {"op": "add", "path": "/resource/properties/markings", "value": values}

_of(corpus, record) := {
	"corpora": {"hr": corpus, "it": {"markings": ["internal"]}},
	"documents": {"handbook": record, "leaflet": {"markings": ["public"]}},
}

# The tool may touch `pii` and `secret`, so unknown markings count as these two.
_cases := {
	"stated by the request": {
		"patch": [_marked(["pii"])], "directory": {}, "markings": {"pii"},
	},
	"stated by nobody": {"patch": [], "directory": {}, "markings": {"pii", "secret"}},
	"stated to be none": {"patch": [_marked([])], "directory": {}, "markings": set()},
	"a corpus of the directory": {
		"patch": [fixture.of("corpus", "hr")], "directory": _of({"markings": ["pii"]}, {}), "markings": {"pii"},
	},
	"a corpus of both": {
		"patch": [fixture.of("corpus", "hr"), _marked(["pii"])], "directory": _of({"markings": ["health"]}, {}),
		"markings": {"health", "pii"},
	},
	"a request that states none takes nothing away": {
		"patch": [fixture.of("corpus", "hr"), _marked([])], "directory": _of({"markings": ["pii"]}, {}),
		"markings": {"pii"},
	},
	"a directory that states none": {
		"patch": [fixture.of("corpus", "hr")], "directory": _of({"markings": []}, {}), "markings": set(),
	},
	"a corpus without markings": {
		"patch": [fixture.of("corpus", "hr")], "directory": _of({}, {}), "markings": {"pii", "secret"},
	},
	"a corpus that the directory does not have": {
		"patch": [fixture.of("corpus", "legal")], "directory": _of({"markings": ["pii"]}, {}),
		"markings": {"pii", "secret"},
	},
	"a document's own": {
		"patch": [fixture.of("document", "handbook")], "directory": _of({}, {"markings": ["health"]}),
		"markings": {"health"},
	},
	"a document's corpus's": {
		"patch": [fixture.of("document", "handbook")], "directory": _of({"markings": ["pii"]}, {"corpus": "hr"}),
		"markings": {"pii"},
	},
	"a document's, its corpus's and the request's": {
		"patch": [fixture.of("document", "handbook"), _marked(["a"])],
		"directory": _of({"markings": ["b"]}, {"corpus": "hr", "markings": ["c"]}),
		"markings": {"a", "b", "c"},
	},
	"a document that names no corpus": {
		"patch": [fixture.of("document", "leaflet")], "directory": _of({}, {}), "markings": {"public"},
	},
	"a corpus and a document of one name": {
		"patch": [fixture.of("corpus", "leaflet")], "directory": _of({}, {}), "markings": {"pii", "secret"},
	},
	"another kind of resource of that name": {
		"patch": [fixture.of("wire_payment", "hr")], "directory": _of({"markings": ["pii"]}, {}),
		"markings": {"pii", "secret"},
	},
}

test_markings[name] if {
	some name, case in _cases
	asked := fixture.changed(case.patch)
	case.markings == resource.markings with input as asked
		with data.manifests as fixture.manifests({"markings": ["pii", "secret"]}, [])
		with data.directory as case.directory
	not resource.unreadable with input as asked with data.directory as case.directory
}

test_no_directory_is_readable if {
	not resource.unreadable with input as fixture.changed([fixture.of("document", "handbook")])
}

_not_markings := ["pii", {"pii": true}, {}, null, true, 1, ["pii", 1], [["pii"]], [null]]

_not_a_record := ["pii", ["pii"], [], null, true, 1]

_unreadable contains _of({"markings": value}, {"corpus": "hr", "markings": []}) if some value in _not_markings

_unreadable contains _of({}, {"markings": value}) if some value in _not_markings

_unreadable contains _of(value, {"corpus": "hr"}) if some value in _not_a_record

_unreadable contains _of({}, value) if some value in _not_a_record

_unreadable contains _of({}, {"corpus": value, "markings": []}) if some value in [["hr"], {}, null, true, 0]

_unreadable contains _of({}, {"restricted": value, "markings": []}) if some value in ["no", null, 0, [], {}]

# The markings of a corpus that does not exist are unknown; markings in the document's record do not change that.
_unreadable contains _of({"markings": ["pii"]}, {"corpus": "legal", "markings": value}) if some value in [[], ["pii"]]

_unreadable contains _of({"markings": ["pii"]}, {"corpus": value}) if some value in ["legal", "", "HR", "hr "]

_unreadable contains {"documents": {"handbook": {"corpus": "hr", "markings": []}}}

_unreadable contains {"corpora": {"hr": false}, "documents": {"handbook": {"corpus": "hr"}}}

_unreadable contains {"corpora": {}, "documents": {"handbook": {"corpus": value}}} if some value in _not_a_name

_not_a_name := [["hr"], {}, [], null, true, false, 0, {"hr": "hr"}]

_unreadable contains {"corpora": value} if some value in ["hr", ["hr"], [], null, true, 1]

_unreadable contains {"documents": value} if some value in ["hr", ["hr"], [], null, true, 1]

_unreadable contains value if some value in ["hr", ["documents"], [], null, true, 1]

test_unreadable[name] if {
	some directory in _unreadable
	name := json.marshal(directory)
	resource.unreadable with input as fixture.changed([fixture.of("document", "handbook")])
		with data.directory as directory
}

test_a_corpus_too[name] if {
	some value in _not_a_record
	name := json.marshal(value)
	resource.unreadable with input as fixture.changed([fixture.of("corpus", "hr")])
		with data.directory as _of(value, {})
}

# Records of other resources are ignored.
test_other_records_and_other_kinds[name] if {
	some name, patch in {"another kind": [], "another corpus": [fixture.of("corpus", "it")]}
	not resource.unreadable with input as fixture.changed(patch)
		with data.directory as _of("mistyped", ["mistyped"])
}

_marked_as(values) := {"patch": [fixture.of("corpus", "hr")], "directory": _of({"markings": values}, {})}

# Each of many markings counts, from the request and from the directory.
test_each_of_many_markings[name] if {
	many := array.concat(fixture.odd, ["a", "b", "c", "d"])
	some name, case in {
		"request": {"patch": [_marked(many)], "directory": {}},
		"corpus": _marked_as(many),
		"document": {"patch": [fixture.of("document", "handbook")], "directory": _of({"markings": ["a"]}, {"markings": many})},
	}
	resource.markings == {marking | some marking in many} with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests({"markings": ["x"]}, [])
		with data.directory as case.directory
}

# A name that only resembles a record's name finds no record.
test_near_the_name_of_a_document if {
	every name in fixture.near("handbook") {
		not resource.document with input as fixture.changed([fixture.of("document", name)])
			with data.directory as {"documents": {"handbook": {"corpus": "hr"}}}
	}
}

test_near_the_name_of_a_corpus if {
	every name in fixture.near("hr.files") {
		resource.markings == {"secret"} with input as fixture.changed([fixture.of("corpus", name)])
			with data.manifests as fixture.manifests({"markings": ["secret"]}, [])
			with data.directory as {"corpora": {"hr.files": {"markings": ["pii"]}}}
	}
}

test_near_the_name_of_a_documents_corpus if {
	every name in fixture.near("hr.files") {
		directory := {"corpora": {"hr.files": {"markings": ["pii"]}}, "documents": {"handbook": {"corpus": name}}}
		asked := fixture.changed([fixture.of("document", "handbook")])
		resource.unreadable with input as asked with data.directory as directory
		resource.markings == {"secret"} with input as asked with data.directory as directory
			with data.manifests as fixture.manifests({"markings": ["secret"]}, [])
	}
}

# The policy reads only the documented fields of a record.
test_other_fields_of_a_record if {
	record := {"corpus": "hr", "markings": [], "parent": "it", "of": "it", "alias": "it", "name": "it", "marking": ["x"]}
	resource.markings == {"pii"} with input as fixture.changed([fixture.of("document", "handbook")])
		with data.manifests as fixture.manifests({"markings": ["secret"]}, [])
		with data.directory as _of({"markings": ["pii"]}, record)
}
