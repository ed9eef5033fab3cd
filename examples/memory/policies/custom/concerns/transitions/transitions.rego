# METADATA
# title: Transitions
# description: |
#   The state of an object of the memory limits its changes (tool boundary document: the policy owns transitions). The
#   application states the objects in `session.facts.memory`. An object that is missing there cannot change.
package custom.concerns.transitions

import data.authz.lib.reason
import rego.v2

# METADATA
# title: Transition forbidden
# description: The object is not in the memory, or its state does not allow this change.
# custom:
#   code: transitions.forbidden
deny contains reason.new(rego.metadata.rule(), {"kind": kind, "id": id, "state": _state(kind, id)}) if {
	[kind, argument, states] := _needs[input.action.name]
	id := object.get(input.context.arguments, argument, null)
	not _state(kind, id) in states
}

_live := ["candidate", "supported", "contested"]

# The kind of object, the argument that names it, and the states in which the tool may change it.
_needs := {
	"record_observation": ["episodes", "episode_id", ["open"]],
	"attach_support": ["propositions", "proposition_id", _live],
	"attach_contradiction": ["propositions", "proposition_id", _live],
	"propose_test": ["propositions", "proposition_id", _live],
	"execute_test_result_ingest": ["tests", "test_id", ["open"]],
	"request_consolidation": ["propositions", "proposition_id", _live],
	"archive_episode": ["episodes", "episode_id", ["open"]],
}

_state(kind, id) := object.get(input.context, ["memory", kind, id, "state"], null)
