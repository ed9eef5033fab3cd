package authz.lib.flow_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.flow

_library(entry, changes) := found if {
	found := flow with input as fixture.changed([fixture.followed(changes)])
		with data.manifests as fixture.manifests(entry, [])
}

# A tool that carries messages; a case states the differences.
_message := {"effect_class": "commit-low", "roles": {"recipient": "destination", "text": "body"}}

_known(item, changes) if _known_to(_message, item, changes)

_known_to(entry, item, changes) if {
	flow.known(item) with input as fixture.changed([fixture.followed(changes)])
		with data.manifests as fixture.manifests(entry, [])
}

_anchored(changes) if {
	flow.anchored with input as fixture.changed([fixture.followed(changes)])
}

_writes(entry) if {
	flow.writes with input as fixture.request with data.manifests as fixture.manifests(entry, [])
}

test_in_use[profile] if {
	some profile in ["watch", "balanced", "strict"]
	_library({"flow": {"profile": profile}}, {}).in_use
	not _library({}, {}).in_use
}

test_of_the_run if {
	seen := _library({}, {"arguments": [fixture.argument("object", ["prompt"]), fixture.argument("body", ["model"])]})
	seen.tainted
	seen.arguments == {fixture.argument("object", ["prompt"]), fixture.argument("body", ["model"])}
	not seen.anchored

	unseen := _library({}, {"tainted": false})
	not unseen.tainted
	unseen.arguments == set()
}

test_of_no_run[name] if {
	some name, patch in {"absent": [], "null": [{"op": "add", "path": "/context/flow", "value": null}]}
	found := flow with input as fixture.changed(patch) with data.manifests as fixture.manifests({"flow": {}}, [])
	[found.arguments, found.sinks, found.leaking] == [set(), set(), set()]
	not found.tainted
	not found.anchored
}

test_anchored[name] if {
	some name, case in {
		"its words": {"flow": {"anchored": true}, "anchored": true},
		"what they ask for": {"flow": {"intended": true}, "anchored": true},
		"both": {"flow": {"anchored": true, "intended": true}, "anchored": true},
		"neither": {"flow": {}, "anchored": false},
	}
	{true | _anchored(case.flow)} == {true | case.anchored}
}

test_writes[name] if {
	some name, case in {
		"pure": {"entry": {"effect_class": "pure"}, "writes": false},
		"an internal read": {"entry": {"effect_class": "read-internal"}, "writes": false},
		"an external read": {"entry": {"effect_class": "read-external"}, "writes": false},
		"staged": {"entry": {"effect_class": "stage"}, "writes": true},
		"an internal commit": {"entry": {"effect_class": "commit-low"}, "writes": true},
		"an external commit": {"entry": {"effect_class": "commit-high"}, "writes": true},
		"nobody says": {"entry": {}, "writes": true},
	}
	{true | _writes(case.entry)} == {true | case.writes}
}

test_nearly_a_read_is_a_write[class] if {
	some class in (fixture.near("read-external") | fixture.near("pure"))
	_writes({"effect_class": class})
}

test_known[name] if {
	some name, case in {
		"the user's word": {"sources": ["prompt"], "known": true, "named": true},
		"a fact": {"sources": ["fact"], "known": true, "named": false},
		"a field that the system writes": {"sources": ["trusted"], "known": true, "named": false},
		"what a write made": {"sources": ["created"], "known": true, "named": true},
		"of a record that the user named": {"sources": ["named"], "known": true, "named": true},
		"approved": {"sources": ["endorsed"], "known": true, "named": true},
		"a party": {"sources": ["party"], "known": false, "named": false},
		"a stranger's": {"sources": ["untrusted"], "known": false, "named": false},
		"the model's own": {"sources": ["model"], "known": false, "named": false},
		"a stranger's and the user's": {"sources": ["prompt", "untrusted"], "known": true, "named": true},
		"a stranger's and the model's": {"sources": ["model", "untrusted"], "known": false, "named": false},
		"nobody's": {"sources": [], "known": false, "named": false},
	}
	{true | _known(fixture.argument("object", case.sources), {})} == {true | case.known}
	{true | flow.named(fixture.argument("object", case.sources))} == {true | case.named}
}

test_near_a_source if {
	not flow.composed(fixture.argument("object", sort(fixture.near("model"))))
	every source in ["prompt", "fact", "trusted", "created", "named", "endorsed", "party"] {
		item := fixture.argument("object", sort(fixture.near(source)))
		not _known(item, {"intended": true, "anchored": true})
		not flow.named(item)
	}
}

# A party counts as the recipient of a message that the user asked for and that contains their words.
test_a_party[name] if {
	some name, case in {
		"both": {"flow": {"intended": true, "anchored": true}, "known": true},
		"what they ask for": {"flow": {"intended": true}, "known": false},
		"the user's words": {"flow": {"anchored": true}, "known": false},
		"a value of the user's": {"flow": {"arguments": [fixture.argument("value", ["prompt"])]}, "known": false},
		"an object of the user's": {"flow": {"arguments": [fixture.argument("object", ["prompt"])]}, "known": false},
		"nothing": {"flow": {}, "known": false},
	}
	every entry in [_message, object.union(_message, {"effect_class": "stage", "destructive": false})] {
		{true | _known_to(entry, fixture.argument("destination", ["party"]), case.flow)} == {true | case.known}
		{true | _known_to(entry, fixture.argument("destination", ["party", "untrusted"]), case.flow)} == {true | case.known}
		not _known_to(entry, fixture.argument("destination", ["untrusted"]), case.flow)
	}
}

# A party does not count for money, access and deletion, or where the labels do not say that the tool carries a message.
test_no_party[name] if {
	some name, entry in {
		"money": {"roles": {"recipient": "destination", "amount": "value", "subject": "body"}},
		"access": {"roles": {"user": "destination", "file": "object"}},
		"deletion": {"destructive": true},
		"what needs approval": {"effect_class": "commit-high"},
		"no roles": {"roles": {}},
	}
	not _known_to(object.union(object.remove(_message, object.keys(entry)), entry), _party, {"intended": true, "anchored": true})
	every field in ["effect_class", "roles"] {
		not _known_to(object.remove(_message, [field]), _party, {"intended": true, "anchored": true})
	}
}

_party := fixture.argument("destination", ["party"])

_paths(arguments) := {argument.path | some argument in arguments}

# For each role, one argument in the user's own domain and one in another domain, with these sources.
_of_each_role(sources) := {"arguments": [object.union(fixture.argument(role, sources), {"path": $"{role}/{home}", "home": home}) |
	some role in ["destination", "url", "address", "object", "value", "body"]
	some home in [true, false]
]}

test_by_role if {
	found := _library({}, _of_each_role(["prompt"]))
	_paths(found.sinks) == {"address/false", "destination/false", "url/false"}
	_paths(found.targets) == {"destination/true", "destination/false", "object/true", "object/false"}
	_paths(found.values) == {"value/true", "value/false"}
	_paths(found.addresses) == {"url/true", "url/false", "address/true", "address/false"}
}

# Fetching an address exactly as a source wrote it sends no data of the run.
test_sinks_of_a_read[class] if {
	some class in ["pure", "read-internal", "read-external"]
	_paths(_library({"effect_class": class}, _of_each_role(["untrusted"])).sinks) == set()
	composed := _library({"effect_class": class}, _of_each_role(["model", "untrusted"]))
	_paths(composed.sinks) == {"address/false", "destination/false", "url/false"}
}

test_aimed_by_user[name] if {
	some name, case in {
		"nothing": {"targets": [], "aimed": false},
		"the user's": {"targets": [["prompt"]], "aimed": true},
		"the user's and the run's": {"targets": [["named", "untrusted"], ["created"]], "aimed": true},
		"the user's and the system's": {"targets": [["prompt"], ["trusted"]], "aimed": false},
	}
	arguments := [object.union(fixture.argument("object", sources), {"path": $"/{index}"}) |
		some index, sources in case.targets
	]
	value := fixture.argument("value", ["prompt"])
	{true | _aimed(array.concat(arguments, [value]))} == {true | case.aimed}
}

_aimed(arguments) if {
	flow.aimed_by_user with input as fixture.changed([fixture.followed({"arguments": arguments})])
}

test_leaking[name] if {
	some name, case in {
		"none was read": {"read": [], "entry": {"admits": ["a"]}, "leaking": set()},
		"nothing is admitted": {"read": ["a", "b"], "entry": {}, "leaking": {"a", "b"}},
		"nobody admits any": {"read": ["a"], "entry": {"admits": []}, "leaking": {"a"}},
		"one is admitted": {"read": ["a", "b"], "entry": {"admits": ["b", "c"]}, "leaking": {"a"}},
		"all are admitted": {"read": ["a", "b"], "entry": {"admits": ["b", "a"]}, "leaking": set()},
		"nearly admitted": {"read": ["mail.own"], "entry": {"admits": sort(fixture.near("mail.own"))}, "leaking": {"mail.own"}},
	}
	_library(case.entry, {"markings": case.read}).leaking == case.leaking
}
