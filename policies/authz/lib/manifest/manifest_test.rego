package authz.lib.manifest_test

import data.authz.lib.fixture_test as fixture
import data.authz.lib.manifest

# Invalid values for each field of an entry.
_wrong := {
	"scopes": [null, "a", true, {}, 0],
	"limits": [
		null, "s", {}, true, ["s"], [null], [{"limit": "l"}], [{"argument": "amount"}],
		[{"limit": 1, "argument": "amount"}], [{"limit": "l", "count": true}], [{"limit": "l", "per": "run"}],
		[{"limit": "l", "count": false, "per": "run"}], [{"limit": "l", "count": true, "per": 1}],
	],
	"idempotency": [null, true, [], {"required": "no"}, {"required": null}],
	"provenance": [null, true, [], {"required": "s"}, {"required": true}],
	"markings": [null, "s", {}, true],
	"purposes": [null, "s", {}, true],
	"release": [null, "passed", [], true],
	"approval": [null, "PT1H", [], true],
	"admits": [null, "s", {}, true],
	"flow": [
		false, "strict", [], {}, {"profile": null}, {"profile": "none"}, {"profile": "strict", "rules": "egress"},
		{"profile": "strict", "rules": null}, {"profile": "strict", "otherwise": "allow"},
		{"profile": "strict", "otherwise": null},
	],
}

test_entry if manifest.entry == fixture.entry with input as fixture.request
	with data.manifests as fixture.manifests({}, [])

test_an_entry_with_rules_about_runs[name] if {
	some flow in [{"profile": "watch", "rules": []}, {"profile": "balanced"}, {"profile": "strict", "otherwise": "deny"}]
	name := json.marshal(flow)
	manifest.entry with input as fixture.request with data.manifests as fixture.manifests({"flow": flow, "admits": []}, [])
}

test_an_entry_of_a_wrong_type_is_none[name] if {
	some field, values in _wrong
	some value in values
	name := sprintf("%s: %s", [field, json.marshal(value)])
	not manifest.entry with input as fixture.request with data.manifests as fixture.manifests({field: value}, [])
}

test_an_entry_that_lacks_what_all_have_is_none[field] if {
	some field in ["scopes", "limits", "idempotency", "provenance"]
	not manifest.entry with input as fixture.request with data.manifests as fixture.manifests({}, [field])
}

test_agents_of_a_wrong_type_are_no_manifest[name] if {
	some value in [null, false, "a", []]
	name := json.marshal(value)
	not manifest.manifest with input as fixture.request
		with data.manifests as {fixture.digest: {"manifest_version": "2026.07.1", "tools": {}, "agents": value}}
}

test_something_else_is_no_manifest[name] if {
	some value in [null, "x", 1, true, []]
	name := json.marshal(value)
	not manifest.manifest with input as fixture.request with data.manifests as {fixture.digest: value}
}

test_near_the_digest if {
	every name in fixture.near(fixture.digest) {
		not manifest.manifest with data.manifests as fixture.manifests({}, [])
			with input as fixture.changed([{"op": "replace", "path": "/action/properties/manifest_digest", "value": name}])
	}
}

test_near_the_tool if {
	every name in fixture.near("initiate_wire") {
		not manifest.entry with data.manifests as fixture.manifests({}, [])
			with input as fixture.changed([{"op": "replace", "path": "/action/properties/tool", "value": name}])
	}
}

test_a_limit_behind_others_is_read_as_well[size] if {
	some size in [1, 2, 3, 9]
	limits := [{"limit": "wire.auto_approved", "argument": "amount"} | some _ in numbers.range(1, size)]
	not manifest.entry with input as fixture.request
		with data.manifests as fixture.manifests({"limits": array.concat(limits, [{"limit": "l", "argument": 1}])}, [])
}

test_a_limit_of_calls_names_no_argument if {
	manifest.entry with input as fixture.request
		with data.manifests as fixture.manifests({"limits": [{"limit": "l", "count": true, "per": "run"}]}, [])
}
