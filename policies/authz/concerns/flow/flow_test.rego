package authz.concerns.flow_test

import data.authz.concerns.flow
import data.authz.lib.fixture_test as fixture

# The findings of a call under the strict profile. By default the tool has no effect class, the run has read untrusted text,
# and the call contains the user's words. A case states the differences.
_found(entry, changes) := found if {
	found := flow with data.manifests as fixture.manifests(object.union({"flow": {"profile": "strict"}}, entry), [])
		with input as fixture.changed([fixture.followed(object.union({"anchored": true}, changes))])
}

_asked(entry, changes) := {trim_prefix(finding.code, "flow.") | some finding in _found(entry, changes).step_up}

_labelled(role, sources) := {"arguments": [fixture.argument(role, sources)]}

_linked(sources) := {"arguments": [object.union(fixture.argument("body", ["model"]), {"links": [
	{"sources": ["prompt"], "from": []},
	{"sources": sources, "from": [{"tool": "read_mail", "call": "call-2"}]},
]})]}

_good := ["created", "endorsed", "fact", "named", "prompt", "trusted"]

_reads := ["pure", "read-internal", "read-external"]

# The findings for an argument of each role that has only these sources.
_by_role := {
	"untrusted": {
		"destination": {"target_untrusted"}, "object": {"target_untrusted"}, "value": {"value_untrusted"},
		"url": {"value_untrusted"}, "address": {"value_untrusted"}, "body": set(),
	},
	"model": {
		"destination": {"target_untrusted"}, "object": {"target_untrusted"}, "value": {"value_untrusted"},
		"url": {"address_composed"}, "address": {"address_composed"}, "body": set(),
	},
}

test_an_argument_that_nobody_vouches_for[name] if {
	some source, roles in _by_role
	some role, codes in roles
	name := $"{role} {source}"
	_asked({}, _labelled(role, [source])) == codes
	_asked({}, object.union(_labelled(role, [source]), {"tainted": false})) == set()
}

# The sources are an untrusted text and the model. An address with these sources is composed.
test_an_argument_of_two_sources[role] if {
	some role, codes in _by_role.model
	_asked({}, _labelled(role, ["model", "untrusted"])) == codes
}

test_an_argument_that_somebody_vouches_for[name] if {
	some role in ["destination", "object", "value", "url", "address", "body"]
	some source in _good
	name := $"{role} {source}"
	_asked({}, _labelled(role, [source])) == set()
	_asked({}, _labelled(role, sort([source, "untrusted"]))) == set()
}

test_each_argument_counts[size] if {
	some size in [1, 2, 3, 9]
	before := [fixture.argument("destination", ["prompt"]) | some _ in numbers.range(1, size)]
	_asked({}, {"arguments": array.concat(before, [fixture.argument("object", ["untrusted"])])}) == {"target_untrusted"}
}

# A tool that only reads has no target. The address that it fetches may be untrusted, or contain data of the run.
test_a_read[class] if {
	some class in _reads
	entry := {"effect_class": class, "destructive": true}
	every role in ["destination", "object", "value"] {
		_asked(entry, object.union(_labelled(role, ["untrusted"]), {"anchored": false, "plan": []})) == set()
	}
	every role in ["url", "address"] {
		_asked(entry, object.union(_labelled(role, ["untrusted"]), {"anchored": false})) == {"address_untrusted"}
		_asked(entry, object.union(_labelled(role, ["untrusted"]), {"tainted": false})) == set()
		_asked(entry, _labelled(role, ["trusted", "untrusted"])) == set()
		_asked(entry, object.union(_labelled(role, ["model"]), {"anchored": false})) == {"address_composed"}
	}
	_asked(entry, _linked(["untrusted"])) == set()
}

# The model computed an amount for a target that the user named.
test_a_value_that_was_worked_out[name] if {
	some name, case in {
		"for the user's destination": {"sources": ["model"], "targets": {"destination": ["prompt"]}, "asked": set()},
		"for an object that the run has made": {"sources": ["model"], "targets": {"object": ["created"]}, "asked": set()},
		"for two that the user named": {
			"sources": ["model"], "targets": {"object": ["named"], "destination": ["endorsed"]}, "asked": set(),
		},
		"for two of which one is the system's": {
			"sources": ["model"], "targets": {"object": ["prompt"], "destination": ["trusted"]}, "asked": {"value_untrusted"},
		},
		"for one that is the system's": {
			"sources": ["model"], "targets": {"object": ["trusted"]}, "asked": {"value_untrusted"},
		},
		"for no target": {"sources": ["model"], "targets": {}, "asked": {"value_untrusted"}},
		"from a stranger's": {
			"sources": ["model", "untrusted"], "targets": {"object": ["prompt"]}, "asked": {"value_untrusted"},
		},
		"by a stranger": {"sources": ["untrusted"], "targets": {"object": ["prompt"]}, "asked": {"value_untrusted"}},
	}
	targets := [fixture.argument(role, sources) | some role, sources in case.targets]
	_asked({}, {"arguments": array.concat([fixture.argument("value", case.sources)], targets)}) == case.asked
}

test_a_write_of_each_class[class] if {
	some class in ["stage", "commit-low", "commit-high"]
	_asked({"effect_class": class}, _labelled("destination", ["untrusted"])) == {"target_untrusted"}
}

test_a_link[source] if {
	some source, codes in object.union(
		{name: set() | some name in _good},
		{"untrusted": {"link_untrusted"}, "party": {"link_untrusted"}, "model": {"link_untrusted"}},
	)
	every entry in [{}, {"effect_class": "commit-low", "roles": {"to": "destination", "text": "body"}}] {
		_asked(entry, object.union(_linked([source]), {"intended": true})) == codes
	}
	_asked({}, object.union(_linked([source]), {"tainted": false})) == set()
}

# Data that the run has read, and the destinations that it may go to.
_marked(role, sources, changes) := object.union(
	{"markings": ["account", "diary"], "arguments": [object.union(fixture.argument(role, sources), changes)]},
	{"tainted": object.get(changes, "tainted", true)},
)

_all_marked := ["account", "diary"]

_egress := {
	"a destination that a stranger names": {"flow": _marked("destination", ["untrusted"], {}), "markings": _all_marked},
	"a destination that is a stranger's in part": {
		"flow": _marked("destination", ["model", "untrusted"], {}), "markings": _all_marked,
	},
	"a url that a stranger names": {"flow": _marked("url", ["untrusted"], {}), "markings": _all_marked},
	"an address that is composed": {"flow": _marked("address", ["model", "untrusted"], {}), "markings": _all_marked},
	"one marking is admitted": {
		"entry": {"admits": ["diary"]},
		"flow": _marked("destination", ["untrusted"], {}), "markings": ["account"],
	},
	"another one is admitted": {
		"entry": {"admits": ["diaries", "Account"]},
		"flow": _marked("destination", ["untrusted"], {}), "markings": _all_marked,
	},
	"both are admitted": {"entry": {"admits": ["diary", "account"]}, "flow": _marked("destination", ["untrusted"], {})},
	"nothing marked was read": {"flow": _labelled("destination", ["untrusted"])},
	"the user's own domain": {"flow": _marked("destination", ["untrusted"], {"home": true})},
	"the system named it": {"flow": _marked("destination", ["trusted"], {})},
	"the user named it": {"flow": _marked("destination", ["prompt", "untrusted"], {})},
	"an object is no destination": {"flow": _marked("object", ["untrusted"], {})},
	"a value is no destination": {"flow": _marked("value", ["untrusted"], {})},
	"a text is no destination": {"flow": _marked("body", ["model"], {})},
}

_markings_of(found) := {[finding.code, finding.details.markings] |
	some finding in found
	finding.code == "flow.egress"
}

test_egress[name] if {
	some name, case in _egress
	found := _found(object.get(case, "entry", {}), case.flow)
	_markings_of(found.step_up) == {["flow.egress", markings] | markings := case.markings}
	found.deny == set()
	untainted := _found(object.get(case, "entry", {}), object.union(case.flow, {"tainted": false}))
	untainted.step_up == set()
}

# An approval reaches to other pages of the address's site, so the address counts as approved.
test_address_on_an_approved_site[role] if {
	some role in ["url", "address"]
	_asked({}, _marked(role, ["endorsed", "model", "untrusted"], {})) == set()
	_asked({"effect_class": "read-external"}, _marked(role, ["endorsed", "model"], {})) == set()
}

# Fetching an address exactly as it was written sends no data of the run.
test_egress_of_a_read[class] if {
	some class in _reads
	_asked({"effect_class": class}, _marked("url", ["untrusted"], {})) == {"address_untrusted"}
	_asked({"effect_class": class}, _marked("url", ["model", "untrusted"], {})) == {"address_composed", "egress"}
}

# A destination that the model composed is denied only if the tool has no approvers.
test_egress_to_nowhere[name] if {
	some name, case in {
		"the model's own": {"sources": ["model"], "approvers": ["lead"], "denied": set()},
		"the model's own, without approvers": {"sources": ["model"], "approvers": [], "denied": {"flow.egress"}},
		"the model's own, with approvers of another type": {
			"sources": ["model"], "approvers": null, "denied": {"flow.egress"},
		},
		"partly, without approvers": {"sources": ["model", "untrusted"], "approvers": [], "denied": set()},
		"a stranger's, without approvers": {"sources": ["untrusted"], "approvers": [], "denied": set()},
	}
	entry := {"approval": {"approvers": case.approvers}}
	found := _found(entry, _marked("destination", case.sources, {}))
	{finding.code | some finding in found.deny} == case.denied
	{finding.code | some finding in found.step_up} == {"flow.egress", "flow.target_untrusted"}
	watched := _found(object.union(entry, {"flow": {"profile": "watch"}}), _marked("destination", case.sources, {}))
	[watched.deny, watched.step_up] == [set(), set()]
}

# The user asked for the deletion and named every target.
test_destructive[name] if {
	some name, case in {
		"the user named the object": {"flow": _labelled("object", ["prompt"]), "asked": set()},
		"the user named the destination": {"flow": _labelled("destination", ["named"]), "asked": set()},
		"an approval names it": {"flow": _labelled("object", ["endorsed"]), "asked": set()},
		"the run has made it": {"flow": _labelled("object", ["created"]), "asked": set()},
		"the system names it": {"flow": _labelled("object", ["trusted"])},
		"the user named another one as well": {"flow": {"arguments": [
			fixture.argument("object", ["trusted"]), fixture.argument("destination", ["prompt"]),
		]}},
		"the user named both": {"asked": set(), "flow": {"arguments": [
			fixture.argument("object", ["named"]), fixture.argument("destination", ["prompt"]),
		]}},
		"the user named a value": {"flow": _labelled("value", ["prompt"]), "asked": set()},
		"the system names a value": {"flow": _labelled("value", ["trusted"])},
		"the user named one of two values": {"flow": {"arguments": [
			fixture.argument("value", ["prompt"]), fixture.argument("value", ["trusted"]),
		]}},
		"the user named a text": {"flow": _labelled("body", ["prompt"])},
		"the user named a value beside the target": {"flow": {"arguments": [
			fixture.argument("object", ["trusted"]), fixture.argument("value", ["prompt"]),
		]}},
		"it has no target": {"flow": {}},
		"nothing of a stranger's was read": {"flow": {"tainted": false}, "asked": set()},
	}
	_asked({"destructive": true}, object.union({"intended": true}, case.flow)) == object.get(case, "asked", {"destructive"})
	unasked := {"destructive" | object.get(case.flow, "tainted", true)}
	_asked({"destructive": true}, case.flow) == unasked
	_asked({"destructive": false}, case.flow) == set()
}

test_aimless_and_not_anchored[name] if {
	some name, case in {
		"the user's words": {"flow": {"anchored": true}, "asked": set()},
		"none of them": {"flow": {"anchored": false}, "asked": {"aimless", "not_anchored"}},
		"what they ask for": {"flow": {"anchored": false, "intended": true}, "asked": {"not_anchored"}},
		"a text alone": {"flow": _labelled("body", ["model"]), "asked": {"aimless", "not_anchored"}},
		"a value alone": {"flow": _labelled("value", ["fact"]), "asked": {"aimless", "not_anchored"}},
		"a destination": {"flow": _labelled("destination", ["fact"]), "asked": {"not_anchored"}},
		"an object": {"flow": _labelled("object", ["fact"]), "asked": {"not_anchored"}},
		"a url": {"flow": _labelled("url", ["fact"]), "asked": {"not_anchored"}},
		"an address": {"flow": _labelled("address", ["fact"]), "asked": {"not_anchored"}},
	}
	changes := object.union({"anchored": false}, case.flow)
	_asked({}, changes) == case.asked
	_asked({}, object.union(changes, {"tainted": false})) == set()
	every class in _reads {
		_asked({"effect_class": class}, changes) == set()
	}
}

test_off_plan[name] if {
	some name, case in {
		"no plan": {"flow": {"plan": null}, "asked": set()},
		"the plan has it": {"flow": {"plan": ["read_mail", "initiate_wire"]}, "asked": set()},
		"the plan has it not": {"flow": {"plan": ["read_mail"]}, "asked": {"off_plan"}},
		"the plan is empty": {"flow": {"plan": []}, "asked": {"off_plan"}},
		"the plan has nearly it": {"flow": {"plan": sort(fixture.near("initiate_wire"))}, "asked": {"off_plan"}},
	}
	_asked({}, case.flow) == case.asked
	_asked({}, object.union(case.flow, {"tainted": false})) == set()
}

# In this run every rule has a finding.
_all := {
	"anchored": false,
	"plan": [],
	"markings": ["account"],
	"arguments": [
		fixture.argument("destination", ["untrusted"]),
		fixture.argument("url", ["model", "untrusted"]),
		fixture.argument("value", ["untrusted"]),
		object.union(fixture.argument("body", ["model"]), {"links": [{"sources": ["untrusted"], "from": []}]}),
	],
}

_aimed := ["address_composed", "destructive", "egress", "link_untrusted", "off_plan", "target_untrusted", "value_untrusted"]

_profiles := {
	"watch": {"flow": {"profile": "watch"}, "asked": []},
	"balanced": {"flow": {"profile": "balanced"}, "asked": _aimed},
	"strict": {"flow": {"profile": "strict"}, "asked": array.concat(_aimed, ["not_anchored"])},
	"single rules": {"flow": {"profile": "watch", "rules": ["egress", "not_anchored"]}, "asked": ["egress", "not_anchored"]},
	"beside those of a profile": {
		"flow": {"profile": "balanced", "rules": ["not_anchored", "egress"]},
		"asked": array.concat(_aimed, ["not_anchored"]),
	},
}

test_profiles[name] if {
	some name, case in _profiles
	codes := {$"flow.{rule}" | some rule in case.asked}
	watched := sort({$"flow.{rule}" | some rule in array.concat(_aimed, ["not_anchored"])} - codes)

	asking := _found({"destructive": true, "flow": case.flow}, _all)
	[{finding.code | some finding in asking.step_up}, asking.deny] == [codes, set()]
	asking.obligations == {{"id": "note", "on": "ALLOW", "parameters": {"codes": watched}} | count(watched) > 0}

	refusing := _found({"destructive": true, "flow": object.union(case.flow, {"otherwise": "deny"})}, _all)
	{finding.code | some finding in refusing.deny} == codes

	stated := _found({"destructive": true, "flow": object.union(case.flow, {"otherwise": "step_up"})}, _all)
	stated == asking
}

test_balanced_has_aimless if {
	_asked({"flow": {"profile": "balanced"}}, {"anchored": false}) == {"aimless"}
	_asked({"flow": {"profile": "watch", "rules": ["aimless"]}}, {"anchored": false}) == {"aimless"}
}

# Where labels are in use and the request does not say what the run has read, the only result is a denial.
test_unknown[name] if {
	some name, patch in {
		"absent": [], "null": [{"op": "add", "path": "/context/flow", "value": null}],
		"a run": [fixture.followed({})],
	}
	found := flow with input as fixture.changed(patch)
		with data.manifests as fixture.manifests({"flow": {"profile": "watch", "otherwise": "step_up"}}, [])
	fixture.brief(found.deny) == {["flow.unknown", {}] | name != "a run"}
	unlabelled := flow with input as fixture.changed(patch) with data.manifests as fixture.manifests({}, [])
	[unlabelled.deny, unlabelled.step_up] == [set(), set()]
}

# Without labels, the run's reading has no effect.
test_without_labels if {
	found := flow with data.manifests as fixture.manifests({}, []) with input as fixture.changed([fixture.followed(_all)])
	[found.deny, found.step_up] == [set(), set()]
}

# The details say where the value came from.
test_details if {
	brief := fixture.brief(_found({"destructive": true}, _all).step_up)
	from := [{"tool": "read_mail", "call": "call-1"}]
	destination := {"argument": "/destination", "role": "destination", "sources": ["untrusted"], "from": from}
	url := {"argument": "/url", "role": "url", "sources": ["model", "untrusted"], "from": from}

	brief == {
		["flow.target_untrusted", destination],
		["flow.value_untrusted", {"argument": "/value", "role": "value", "sources": ["untrusted"], "from": from}],
		["flow.address_composed", url],
		["flow.link_untrusted", {"argument": "/body", "role": "body", "sources": ["untrusted"], "from": []}],
		["flow.egress", object.union(destination, {"markings": ["account"]})],
		["flow.egress", object.union(url, {"markings": ["account"]})],
		["flow.destructive", {}], ["flow.off_plan", {}], ["flow.not_anchored", {}],
	}
}
