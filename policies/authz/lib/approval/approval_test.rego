package authz.lib.approval_test

import data.authz.lib.approval
import data.authz.lib.fixture_test as fixture

_patched(patches) := array.concat([fixture.approved, fixture.digested], patches)

_set(field, value) := {"op": "add", "path": sprintf("/context/approval/%s", [field]), "value": value}

_drop(field) := {"op": "remove", "path": sprintf("/context/approval/%s", [field])}

_subject(field, value) := {"op": "add", "path": sprintf("/subject/properties/%s", [field]), "value": value}

_grants(values) := _set("grants", values)

_grant(sub, iss) := {"sub": sub, "iss": iss, "roles": ["payments.approver"]}

_entry(changes) := object.union(fixture.entry.approval, changes)

_acting := {"sub": "agent:outer", "iss": "a", "act": {"sub": "agent:2", "act": {"sub": "agent:3", "act": {"sub": "agent:inner"}}}}

_valid := {
	"as granted": {"patch": [], "approval": {}},
	"more keys": {"patch": [_set("note", 1), _set("grants/0/at", "now")], "approval": {}},
	"just made": {"patch": [_set("age_seconds", 0)], "approval": {}},
	"as old as it may be": {"patch": [_set("age_seconds", 3600)], "approval": {}},
	"no issuer": {"patch": [_drop("grants/0/iss")], "approval": {}},
	"a role among others": {"patch": [_set("grants/0/roles", ["x", "payments.approver"])], "approval": {}},
	"one of two roles": {"patch": [], "approval": {"approvers": ["treasurer", "payments.approver"]}},
	"two people": {"patch": [_grants([_grant("ann", "a"), _grant("ben", "a")])], "approval": {"quorum": 2}},
	"two of one name at two issuers": {
		"patch": [_grants([_grant("ann", "a"), _grant("ann", "b")])], "approval": {"quorum": 2},
	},
	"those two are two beside one without issuer": {
		"patch": [_grants([_grant("ann", "a"), _grant("ann", null), _grant("ann", "b")])], "approval": {"quorum": 2},
	},
	"who has no role takes no one's place": {
		"patch": [_grants([_grant("ann", null), {"sub": "ann", "iss": "a", "roles": []}])], "approval": {},
	},
	"more than needed": {"patch": [_grants([_grant("ann", "a"), _grant("officer-123", "a"), _grant("ben", "a")])], "approval": {"quorum": 2}},
	"the subject's name at another issuer": {
		"patch": [_subject("iss", "b"), _grants([_grant("officer-123", "a")])], "approval": {},
	},
	"an agent's name at another issuer": {
		"patch": [_subject("act", _acting), _grants([_grant("agent:outer", "b")])], "approval": {},
	},
}

test_valid[name] if {
	some name, case in _valid
	approval.valid with input as fixture.changed(_patched(case.patch))
		with data.manifests as fixture.manifests({"approval": _entry(case.approval)}, [])
}

_invalid := {
	"the digest of another call": [_set("call_digest", "sha256:other")],
	"no digest of the call": [{"op": "remove", "path": "/context/call_digest"}],
	"no digests": [{"op": "remove", "path": "/context/call_digest"}, _drop("call_digest")],
	"both digests null": [_set("call_digest", null), {"op": "add", "path": "/context/call_digest", "value": null}],
	"both digests empty": [_set("call_digest", ""), {"op": "add", "path": "/context/call_digest", "value": ""}],
	"too old": [_set("age_seconds", 3600.5)],
	"not yet made": [_set("age_seconds", -1)],
	"no grant": [_grants([])],
	"another role": [_set("grants/0/roles", ["payments.viewer"])],
	"no role": [_set("grants/0/roles", [])],
	"the subject itself": [_subject("iss", "a"), _grants([_grant("officer-123", "a")])],
	"the subject, if its issuer is unknown": [_grants([_grant("officer-123", "a")])],
	"the subject, if its issuer is empty": [_subject("iss", ""), _grants([_grant("officer-123", "a")])],
	"the subject, if the grant's issuer is unknown": [_subject("iss", "a"), _grants([_grant("officer-123", null)])],
	"its agent": [_subject("act", _acting), _grants([_grant("agent:outer", "a")])],
	"its agent, if the grant's issuer is unknown": [_subject("act", _acting), _grants([_grant("agent:outer", null)])],
	"the second agent": [_subject("act", _acting), _grants([_grant("agent:2", "a")])],
	"the third agent": [_subject("act", _acting), _grants([_grant("agent:3", "a")])],
	"the last agent": [_subject("act", _acting), _grants([_grant("agent:inner", "a")])],
	"the agent that the application names": [
		{"op": "add", "path": "/context/agent", "value": "agent:app"},
		_grants([_grant("agent:app", "a")]),
	],
	"one grant without roles beside a good one": [_set("grants/1", {"sub": "ben", "iss": "a"})],
	"something else beside a good grant": [_set("grants/1", "ben")],
	"one bad grant beside a good one": [_set("grants/1", _grant("", "a"))],
}

test_invalid[name] if {
	some name, patch in _invalid
	not approval.valid with input as fixture.changed(_patched(patch)) with data.manifests as fixture.manifests({}, [])
}

# Two people are needed, and these grants come from one person, or could.
_fewer_than_two := {
	"one": [_grant("ann", "a")],
	"one twice": [_grant("ann", "a"), object.union(_grant("ann", "a"), {"roles": ["x", "payments.approver"]})],
	"one name, one issuer unknown": [_grant("ann", "a"), _grant("ann", null)],
	"one name, one issuer not there": [_grant("ann", "a"), object.remove(_grant("ann", "a"), ["iss"])],
	"one name, no issuer": [_grant("ann", null), object.remove(_grant("ann", null), ["iss"])],
	"one and the subject": [_grant("ann", "a"), _grant("officer-123", "a")],
	"one and another without the role": [_grant("ann", "a"), object.union(_grant("ben", "a"), {"roles": ["x"]})],
}

test_fewer_than_two[name] if {
	some few, grants in _fewer_than_two
	some quorum in [2, 1.5]
	name := sprintf("%s of %v", [few, quorum])
	not approval.valid with input as fixture.changed(_patched([_grants(grants)]))
		with data.manifests as fixture.manifests({"approval": _entry({"quorum": quorum})}, [])
}

# Invalid values for each field of an approval and of a grant. A missing field is invalid as well.
_not_texts := [null, "", 1, true, [], {}]

_not_lists := [null, "payments.approver", 1, true, {}, {"0": "payments.approver"}]

_wrong := {
	"id": _not_texts,
	"call_digest": _not_texts,
	"age_seconds": [null, "300", "", true, [], {}],
	"grants": array.concat(_not_lists, [[null], ["ann"], [[]], {"0": _grant("ann", "a")}]),
	"grants/0/sub": _not_texts,
	"grants/0/roles": array.concat(_not_lists, [["payments.approver", 1], [["payments.approver"]]]),
}

_mistyped contains [_set(field, value)] if {
	some field, values in _wrong
	some value in values
}

_mistyped contains [_drop(field)] if some field, _ in _wrong

_mistyped contains [_set("grants/0/iss", value)] if some value in ["", 1, true, [], {}]

_mistyped contains [{"op": "replace", "path": "/context/approval", "value": value}] if {
	some value in [null, {}, [], "granted", true, 1, {"granted": true}]
}

test_mistyped[name] if {
	some patch in _mistyped
	name := json.marshal(patch)
	not approval.valid with input as fixture.changed(_patched(patch)) with data.manifests as fixture.manifests({}, [])
}

# Invalid values for each field of the tool's entry. With any of them, no person may approve.
_wrong_entries := {
	"expires_seconds": [null, "3600", true, [], {}, 299, -1],
	"approvers": [null, "payments.approver", true, [], {"0": "payments.approver"}, [null], [["payments.approver"]]],
	"quorum": [null, "1", true, [], {}, 0, -1, 0.5, 2],
}

test_wrong_entry[name] if {
	some field, values in _wrong_entries
	some value in values
	name := sprintf("%s: %s", [field, json.marshal(value)])
	not approval.valid with input as fixture.changed(_patched([]))
		with data.manifests as fixture.manifests({"approval": _entry({field: value})}, [])
}

test_entry_without[field] if {
	some field, _ in _wrong_entries
	not approval.valid with input as fixture.changed(_patched([])) with data.manifests as fixture.manifests(
		{"approval": object.remove(fixture.entry.approval, [field])},
		["approval"],
	)
}

test_no_entry if {
	not approval.valid with input as fixture.changed(_patched([])) with data.manifests as {}
}

test_no_request[name] if {
	some value in [null, [], "x", 1, {}]
	name := json.marshal(value)
	not approval.valid with input as value with data.manifests as fixture.manifests({}, [])
}

_long := sprintf("sha256:%s", [concat("", ["0123456789abcdef" | some _ in numbers.range(1, 4)])])

# A digest that only resembles the call's digest does not approve it.
test_near_the_digest[name] if {
	some digest in ["sha256:call", _long]
	some near in fixture.near(digest)
	some pair in [[digest, near], [near, digest]]
	name := json.marshal(pair)
	not approval.valid with input as fixture.changed(_patched([
		_set("call_digest", pair[0]),
		{"op": "add", "path": "/context/call_digest", "value": pair[1]},
	]))
		with data.manifests as fixture.manifests({}, [])
}

test_the_digest_itself[digest] if {
	some digest in array.concat([_long], fixture.odd)
	approval.valid with input as fixture.changed(_patched([
		_set("call_digest", digest),
		{"op": "add", "path": "/context/call_digest", "value": digest},
	]))
		with data.manifests as fixture.manifests({}, [])
}

test_near_the_role[name] if {
	some near in fixture.near("payments.approver")
	some pair in [["payments.approver", near], [near, "payments.approver"]]
	name := json.marshal(pair)
	not approval.valid with input as fixture.changed(_patched([_set("grants/0/roles", [pair[0]])]))
		with data.manifests as fixture.manifests({"approval": _entry({"approvers": [pair[1]]})}, [])
}

# Two roles do not add up to a third one.
test_roles_are_not_put_together[name] if {
	some name, roles in {"dot": ["payments", "approver"], "comma": ["a", "b"], "nothing": ["payments.", "approver"]}
	not approval.valid with input as fixture.changed(_patched([_set("grants/0/roles", roles)]))
		with data.manifests as fixture.manifests({"approval": _entry({"approvers": ["payments.approver", "a,b"]})}, [])
}

test_the_age_is_compared_exactly[age] if {
	some age, _ in {3600.0001: true, 3600.005: true, 3600.4: true, 3601: true, 86400: true}
	not approval.valid with input as fixture.changed(_patched([_set("age_seconds", age)]))
		with data.manifests as fixture.manifests({}, [])
}

# Short and long lifetimes expire exactly.
test_expiry[name] if {
	some seconds in [0, 0.5, 60, 86400, 31536000]
	some age, holds in {seconds: true, seconds + 0.001: false}
	name := sprintf("%v of %v", [age, seconds])
	valid := {true | approval.valid} with input as fixture.changed(_patched([_set("age_seconds", age)]))
		with data.manifests as fixture.manifests({"approval": _entry({"expires_seconds": seconds})}, [])
	valid == {true | holds}
}

_crowd(size) := [_grant(sprintf("person-%d", [number]), "a") | some number in numbers.range(1, size)]

# A quorum needs its exact number of people, and every grant has to be well formed.
test_quorum[name] if {
	some quorum in [2, 3, 4, 5, 8]
	some size, holds in {quorum: true, quorum - 1: false}
	name := sprintf("%d of %d", [size, quorum])
	valid := {true | approval.valid} with input as fixture.changed(_patched([_grants(_crowd(size))]))
		with data.manifests as fixture.manifests({"approval": _entry({"quorum": quorum})}, [])
	valid == {true | holds}
}

test_one_bad_grant_in_a_crowd[size] if {
	some size in [2, 3, 4, 5, 8]
	not approval.valid with input as fixture.changed(_patched([_grants(array.concat(_crowd(size), [_grant("", "a")]))]))
		with data.manifests as fixture.manifests({}, [])
}

_odd_selves contains [{"op": "replace", "path": "/subject/id", "value": name}, _grants([_grant(name, "a")])] if {
	some name in fixture.odd
}

_odd_selves contains [
	{"op": "replace", "path": "/subject/id", "value": "ann"},
	_subject("iss", issuer),
	_grants([_grant("ann", issuer)]),
] if {
	some issuer in fixture.odd
}

_odd_selves contains [_subject("act", {"sub": name}), _grants([_grant(name, "a")])] if some name in fixture.odd

_odd_selves contains [{"op": "add", "path": "/context/agent", "value": name}, _grants([_grant(name, "a")])] if {
	some name in fixture.odd
}

test_nobody_of_an_odd_name_approves_what_it_asks_for[name] if {
	some patch in _odd_selves
	name := json.marshal(patch)
	not approval.valid with input as fixture.changed(_patched(patch)) with data.manifests as fixture.manifests({}, [])
}

test_one_of_an_odd_name_is_one[name] if {
	some odd in fixture.odd
	some grants in [[_grant(odd, "a"), _grant(odd, null)], [_grant("ann", odd), _grant("ann", odd)]]
	name := json.marshal(grants)
	not approval.valid with input as fixture.changed(_patched([_grants(grants)]))
		with data.manifests as fixture.manifests({"approval": _entry({"quorum": 2})}, [])
}

# Name and issuer are compared separately: joined, these two people would look like one.
test_two_whose_names_together_are_one[separator] if {
	some separator in ["", "/", "@", ":", "|", ".", ",", " "]
	grants := [_grant(sprintf("b%sann", [separator]), "a"), _grant("ann", sprintf("a%sb", [separator]))]
	approval.valid with input as fixture.changed(_patched([_grants(grants)]))
		with data.manifests as fixture.manifests({"approval": _entry({"quorum": 2})}, [])
}

# The entry names `$subject`, so the person whose own agent asks may approve. Each case changes one thing.
_own := {"sub": "officer-123", "iss": "a", "roles": ["$subject"]}

_of_an_agent := [_subject("iss", "a"), _subject("act", {"sub": "agent:a", "iss": "a"}), _grants([_own])]

_ann := _grant("ann", "a")

_own_cases := {
	"by the person": {"patch": [], "entry": {}, "valid": true},
	"by the person, as the application names the agent": {
		"patch": [_subject("act", null), {"op": "add", "path": "/context/agent", "value": "agent:app"}],
		"entry": {}, "valid": true,
	},
	"by the person, in a deployment without issuers": {
		"patch": [_subject("iss", null), _subject("act", {"sub": "agent:a"}), _grants([object.remove(_own, ["iss"])])],
		"entry": {}, "valid": true,
	},
	"by the person, whose empty issuer is none": {
		"patch": [_subject("iss", ""), _grants([object.union(_own, {"iss": null})])],
		"entry": {}, "valid": true,
	},
	"by the person beside roles": {
		"patch": [], "entry": {"approval": {"approvers": ["payments.approver", "$subject"]}}, "valid": true,
	},
	"by somebody of a role beside it": {
		"patch": [_grants([_ann])], "entry": {"approval": {"approvers": ["$subject", "payments.approver"]}}, "valid": true,
	},
	"by the person and somebody else": {
		"patch": [_grants([_own, _ann])],
		"entry": {"approval": {"approvers": ["$subject", "payments.approver"], "quorum": 2}}, "valid": true,
	},
	"of another class": {"patch": [], "entry": {"effect_class": "commit-low"}, "valid": true},
	"of an external commit": {"patch": [], "entry": {"effect_class": "commit-high"}, "valid": false},
	"where it is not named": {"patch": [], "entry": {"approval": {"approvers": ["payments.approver"]}}, "valid": false},
	"where it is named by no list": {"patch": [], "entry": {"approval": {"approvers": {"0": "$subject"}}}, "valid": false},
	"where nearly it is named": {"patch": [], "entry": {"approval": {"approvers": ["$subject.x", "$SUBJECT", "subject"]}}, "valid": false},
	"where no agent acts": {"patch": [_subject("act", null)], "entry": {}, "valid": false},
	"where the application names an agent without name": {
		"patch": [_subject("act", null), {"op": "add", "path": "/context/agent", "value": ""}], "entry": {}, "valid": false,
	},
	"by somebody who has it as a role": {
		"patch": [_grants([{"sub": "ann", "iss": "a", "roles": ["$subject"]}])], "entry": {}, "valid": false,
	},
	"by the person, of the name of a role": {
		"patch": [_grants([object.union(_own, {"roles": ["payments.approver"]})])],
		"entry": {"approval": {"approvers": ["$subject", "payments.approver"]}}, "valid": false,
	},
	"by the person, with more than the mark": {
		"patch": [_grants([object.union(_own, {"roles": ["$subject", "payments.approver"]})])],
		"entry": {"approval": {"approvers": ["$subject", "payments.approver"]}}, "valid": false,
	},
	"by the person, with no mark": {"patch": [_grants([object.union(_own, {"roles": []})])], "entry": {}, "valid": false},
	"by one of the name at another issuer": {
		"patch": [_grants([object.union(_own, {"iss": "b"})])], "entry": {}, "valid": false,
	},
	"by one of the name, whose issuer is not known": {
		"patch": [_grants([object.union(_own, {"iss": null})])], "entry": {}, "valid": false,
	},
	"by one of the name, where the subject's issuer is not known": {"patch": [_subject("iss", null)], "entry": {}, "valid": false},
	"by the agent": {"patch": [_grants([object.union(_own, {"sub": "agent:a"})])], "entry": {}, "valid": false},
	"by an agent of the person's name": {"patch": [_subject("act", {"sub": "officer-123"})], "entry": {}, "valid": false},
	"by an agent of the person's name behind another": {
		"patch": [_subject("act", {"sub": "agent:a", "act": {"sub": "officer-123"}})], "entry": {}, "valid": false,
	},
	"by an agent that the application gives the person's name": {
		"patch": [{"op": "add", "path": "/context/agent", "value": "officer-123"}], "entry": {}, "valid": false,
	},
	"by the person twice": {
		"patch": [_grants([_own, object.union(_own, {"at": "later"})])], "entry": {"approval": {"quorum": 2}}, "valid": false,
	},
	"by the person once by the mark and once by a role": {
		"patch": [_grants([_own, object.union(_own, {"roles": ["payments.approver"]})])],
		"entry": {"approval": {"approvers": ["$subject", "payments.approver"], "quorum": 2}}, "valid": false,
	},
}

test_own_agents[name] if {
	some name, case in _own_cases
	approval_of := _entry(object.union({"approvers": ["$subject"]}, object.get(case.entry, "approval", {})))
	entry := object.union(case.entry, {"approval": approval_of})
	held := {true | approval.valid} with input as fixture.changed(_patched(array.concat(_of_an_agent, case.patch)))
		with data.manifests as fixture.manifests(entry, ["approval"])
	held == {true | case.valid}
}

# A name or an issuer that only resembles the person's does not count.
test_near_the_person[name] if {
	person := {"sub": "officer-123", "iss": "https://id.example"}
	some field, text in person
	some near in fixture.near(text)
	name := json.marshal({field: near})
	grant := object.union(person, {"roles": ["$subject"], field: near})
	agent := [_subject("iss", "https://id.example"), _subject("act", {"sub": "agent:a"})]
	not approval.valid with input as fixture.changed(_patched(array.concat(agent, [_grants([grant])])))
		with data.manifests as fixture.manifests({"approval": _entry({"approvers": ["$subject"]})}, [])
}
