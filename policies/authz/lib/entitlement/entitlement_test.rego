package authz.lib.entitlement_test

import data.authz.lib.entitlement
import data.authz.lib.fixture_test as fixture

_needed := {
	"a corpus": {"patch": [fixture.of("corpus", "hr")], "entry": {}},
	"a document": {"patch": [fixture.of("document", "handbook")], "entry": {}},
	"a search": {"patch": [], "entry": {"pattern": "search"}},
}

test_needed[name] if {
	some name, case in _needed
	entitlement.needed with input as fixture.changed(case.patch) with data.manifests as fixture.manifests(case.entry, [])
}

test_not_needed[pattern] if {
	some pattern in ["aggregation", "lookup", null]
	not entitlement.needed with input as fixture.request with data.manifests as fixture.manifests({"pattern": pattern}, [])
}

# Malformed entitlements cover nothing, although each of them contains the name of the corpus.
test_covers_nothing[name] if {
	some value in [null, "hr", true, ["hr"], {}, {"corpora": null}, {"corpora": {"hr": "hr"}}, {"documents": ["hr"]}]
	name := json.marshal(value)
	not entitlement.covers(value) with input as fixture.changed([fixture.of("corpus", "hr")])
}

test_covers if {
	entitlement.covers({"corpora": ["hr"]}) with input as fixture.changed([fixture.of("corpus", "hr")])
}

# A document without a valid record belongs to no corpus, so an entitlement to a corpus does not cover it.
test_covers_no_document_whose_record_is_none[name] if {
	some value in ["hr", ["hr"], [{"corpus": "hr"}], null, true, 1]
	name := json.marshal(value)
	not entitlement.covers({"corpora": ["hr"]}) with input as fixture.changed([fixture.of("document", "handbook")])
		with data.directory as {"documents": {"handbook": value}}
}

test_covers_a_document_by_its_corpus if {
	entitlement.covers({"corpora": ["hr"]}) with input as fixture.changed([fixture.of("document", "handbook")])
		with data.directory as {"documents": {"handbook": {"corpus": "hr"}}}
}

_record := {"handbook": {"corpus": "hr.handbook"}}

# A name that only resembles the resource's name entitles to nothing.
test_near_the_name[name] if {
	some near in fixture.near("hr.handbook")
	some kind, type in {"corpora": "corpus", "documents": "document"}
	some pair in [["hr.handbook", near], [near, "hr.handbook"]]
	name := sprintf("%s %s", [kind, json.marshal(pair)])
	not entitlement.covers({kind: [pair[0]]}) with input as fixture.changed([fixture.of(type, pair[1])])
		with data.directory as {}
}

test_near_the_name_of_a_documents_corpus if {
	every name in fixture.near("hr.handbook") {
		not entitlement.covers({"corpora": [name]}) with input as fixture.changed([fixture.of("document", "handbook")])
			with data.directory as {"documents": _record}
	}
}

# Two names do not add up to a third one, and each of many names counts.
test_names_are_not_put_together if {
	not entitlement.covers({"corpora": ["hr", "handbook"]}) with input as fixture.changed([fixture.of("corpus", "hr.handbook")])
	not entitlement.covers({"corpora": ["a", "b"]}) with input as fixture.changed([fixture.of("corpus", "a,b")])
}

test_each_of_many_counts[name] if {
	some name in array.concat(fixture.odd, ["a", "b", "c"])
	entitlement.covers({"corpora": array.concat(fixture.odd, ["a", "b", "c"])}) with input as fixture.changed([fixture.of("corpus", name)])
}
