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
