package authz.concerns.manifest_test

import data.authz.concerns.manifest
import data.authz.lib.fixture_test as fixture

_agents(pins) := object.union(
	fixture.manifests({}, []),
	{fixture.digest: {"agents": {"agent:payments": pins}}},
)

_as(agent) := [{"op": "add", "path": "/context/agent", "value": agent}]

_act(agent) := [{"op": "replace", "path": "/subject/properties/act", "value": {"sub": agent, "scopes": []}}]

_cases := {
	"known": {"patch": [], "manifests": fixture.manifests({}, []), "deny": set()},
	"another digest": {
		"patch": [{"op": "replace", "path": "/action/properties/manifest_digest", "value": "sha256:1"}],
		"manifests": fixture.manifests({}, []),
		"deny": {["manifest.mismatch", {"manifest_version": "2026.07.1"}]},
	},
	"the digest of another version": {
		"patch": [{"op": "replace", "path": "/action/properties/manifest_version", "value": "2026.06.9"}],
		"manifests": fixture.manifests({}, []),
		"deny": {["manifest.mismatch", {"manifest_version": "2026.06.9"}]},
	},
	"no manifests at all": {
		"patch": [],
		"manifests": {},
		"deny": {["manifest.mismatch", {"manifest_version": "2026.07.1"}]},
	},
	"a tool that is not in the manifest": {
		"patch": [{"op": "replace", "path": "/action/properties/tool", "value": "shell_exec"}],
		"manifests": fixture.manifests({}, []),
		"deny": {["manifest.unknown_action", {"tool": "shell_exec", "action": "initiate_wire"}]},
	},
	"an action that the tool does not map to": {
		"patch": [{"op": "replace", "path": "/action/name", "value": "lookup_beneficiary"}],
		"manifests": fixture.manifests({}, []),
		"deny": {["manifest.unknown_action", {"tool": "initiate_wire", "action": "lookup_beneficiary"}]},
	},
	"pinned to the agent that the application names": {
		"patch": _as("agent:payments"),
		"manifests": _agents({"initiate_wire": "2.1.0"}),
		"deny": set(),
	},
	"pinned to the agent of the claims": {
		"patch": _act("agent:payments"),
		"manifests": _agents({"initiate_wire": "2.1.0"}),
		"deny": set(),
	},
	"pinned in another version": {
		"patch": _as("agent:payments"),
		"manifests": _agents({"initiate_wire": "2.0.0"}),
		"deny": {["manifest.not_pinned", {"agents": ["agent:payments"]}]},
	},
	"pinned to another agent": {
		"patch": _as("agent:other"),
		"manifests": _agents({"initiate_wire": "2.1.0"}),
		"deny": {["manifest.not_pinned", {"agents": ["agent:other"]}]},
	},
	"two agents, one of them without the pin": {
		"patch": array.concat(_as("agent:payments"), _act("agent:other")),
		"manifests": _agents({"initiate_wire": "2.1.0"}),
		"deny": {["manifest.not_pinned", {"agents": ["agent:other", "agent:payments"]}]},
	},
	"pins, but no agent": {
		"patch": _as(null),
		"manifests": _agents({"initiate_wire": "2.1.0"}),
		"deny": {["manifest.not_pinned", {"agents": []}]},
	},
	"released": {
		"patch": [],
		"manifests": fixture.manifests({"release": {"gate": "passed", "drift": "ok"}}, []),
		"deny": set(),
	},
	"gate not passed": {
		"patch": [],
		"manifests": fixture.manifests({"release": {"gate": "failed", "drift": "ok"}}, []),
		"deny": {["manifest.not_released", {"tool": "initiate_wire"}]},
	},
	"drifted": {
		"patch": [],
		"manifests": fixture.manifests({"release": {"gate": "passed", "drift": "detected"}}, []),
		"deny": {["manifest.not_released", {"tool": "initiate_wire"}]},
	},
	"a release without a gate": {
		"patch": [],
		"manifests": fixture.manifests({"release": {"drift": "ok"}}, []),
		"deny": {["manifest.not_released", {"tool": "initiate_wire"}]},
	},
}

test_manifest[name] if {
	some name, case in _cases
	found := manifest.deny with input as fixture.changed(case.patch)
		with data.manifests as case.manifests

	fixture.brief(found) == case.deny
}

_codes(patch, manifests) := {item.code | some item in found} if {
	found := manifest.deny with input as fixture.changed(patch) with data.manifests as manifests
}

# A version or an action that only resembles the right one does not count; neither do earlier and later versions.
test_near_the_version[name] if {
	some name in (fixture.near("2026.07.1") | {"2026.06.9", "2026.07.0", "2026.07.2", "2026.08.1", "2027.01.1", "2026.7.1", "9"})
	_codes([{"op": "replace", "path": "/action/properties/manifest_version", "value": name}], fixture.manifests({}, [])) == {"manifest.mismatch"}
}

test_near_the_action[name] if {
	some name in (fixture.near("initiate_wire") | {"wire", "initiate"})
	_codes([{"op": "replace", "path": "/action/name", "value": name}], fixture.manifests({}, [])) == {"manifest.unknown_action"}
	_codes([], fixture.manifests({"pdp_action": name}, [])) == {"manifest.unknown_action"}
}

test_near_a_release[field] if {
	some passed, field in {"passed": "gate", "ok": "drift"}
	every name in fixture.near(passed) | {"broken", "not ok", "bypassed", "passed with a waiver"} {
		release := object.union({"gate": "passed", "drift": "ok"}, {field: name})
		_codes([], fixture.manifests({"release": release}, [])) == {"manifest.not_released"}
	}
}

test_near_the_pin[name] if {
	some name in (fixture.near("2.1.0") | {"2.0.9", "2.1.1", "2.2.0", "3.0.0", "1.9.9", "2.1.00", "2.1.0-beta", "2.1.0+1"})
	_codes(_as("agent:payments"), _agents({"initiate_wire": name})) == {"manifest.not_pinned"}
}

test_near_the_agent if {
	every name in fixture.near("agent:payments") {
		_codes(_as(name), _agents({"initiate_wire": "2.1.0"})) == {"manifest.not_pinned"}
		_codes(_act(name), _agents({"initiate_wire": "2.1.0"})) == {"manifest.not_pinned"}
	}
}

test_near_the_pinned_tool if {
	every name in fixture.near("initiate_wire") {
		_codes(_as("agent:payments"), _agents({name: "2.1.0"})) == {"manifest.not_pinned"}
	}
}

test_no_pins[name] if {
	some value in [{}, {"agent:other": {"initiate_wire": "2.1.0"}}]
	name := json.marshal(value)
	manifests := object.union(fixture.manifests({}, []), {fixture.digest: {"agents": value}})
	_codes(_as("agent:payments"), manifests) == {"manifest.not_pinned"}
	_codes(_as("agent:payments"), _agents({})) == {"manifest.not_pinned"}
}

# Each of the five agents needs the pin.
test_each_of_five_agents[lacking] if {
	names := ["agent:0", "agent:1", "agent:2", "agent:3", "agent:4"]
	some lacking in names
	manifests := object.union(fixture.manifests({}, []), {fixture.digest: {"agents": {name: {"initiate_wire": "2.1.0"} |
		some name in names
		name != lacking
	}}})
	acting := {"sub": names[1], "act": {"sub": names[2], "act": {"sub": names[3], "act": {"sub": names[4]}}}}
	patch := [{"op": "replace", "path": "/subject/properties/act", "value": acting}]
	_codes(array.concat(_as(names[0]), patch), manifests) == {"manifest.not_pinned"}
}
