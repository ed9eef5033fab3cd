# METADATA
# title: Manifest
# description: The call names a tool that this bundle knows, in the version that the agent is pinned to.
# schemas:
#   - input: schema.request
package authz.concerns.manifest

import data.authz.lib.manifest
import data.authz.lib.reason
import data.authz.lib.subject
import rego.v2

# METADATA
# title: Mismatch
# description: The bundle has no manifest of this digest and version.
# custom:
#   code: manifest.mismatch
#   remedy: Build the bundle with the manifest and the governance file that the application loads.
deny contains reason.new(rego.metadata.rule(), {"manifest_version": input.action.properties.manifest_version}) if {
	not _known
}

# METADATA
# title: Unknown action
# description: The manifest has no tool of this name that maps to this action.
# custom:
#   code: manifest.unknown_action
#   remedy: Build the bundle with the manifest and the governance file that the application loads.
deny contains reason.new(rego.metadata.rule(), {
	"tool": input.action.properties.tool,
	"action": input.action.name,
}) if {
	_known
	not _mapped
}

# METADATA
# title: Not pinned
# description: The manifest pins tool versions to agents, and does not pin this version to this agent.
# custom:
#   code: manifest.not_pinned
#   remedy: Pin the tool's version to each of these agents in the manifest's `agents`, or use an agent that has the pin.
deny contains reason.new(rego.metadata.rule(), {"agents": _agents}) if {
	is_object(manifest.manifest.agents)
	not _pinned
}

# METADATA
# title: Not released
# description: The tool's version has not passed its release gate, or it has drifted since.
# custom:
#   code: manifest.not_released
#   remedy: Release the version. Its `release` has to state a gate that has passed and a drift that is ok.
#   unreached: Loading rejects such an entry. The rule covers manifests that other software wrote into the bundle's data.
deny contains reason.new(rego.metadata.rule(), {"tool": input.action.properties.tool}) if {
	_ = manifest.entry.release
	not _released
}

_known if manifest.manifest.manifest_version == input.action.properties.manifest_version

_mapped if manifest.entry.pdp_action == input.action.name

_released if {
	manifest.entry.release.gate == "passed"
	manifest.entry.release.drift == "ok"
}

# The agent that the application names and every agent that the claims name. All of them need the pin.
_agents := sort({input.context.agent | input.context.agent != null} | {agent.sub | some agent in subject.agents})

_pinned if {
	count(_agents) > 0
	every agent in _agents {
		manifest.manifest.agents[agent][input.action.properties.tool] == manifest.entry.version
	}
}
