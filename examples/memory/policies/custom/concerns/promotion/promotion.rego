# METADATA
# title: Promotion
# description: |
#   States the conditions for a request to consolidate a proposition (tool boundary document: the policy owns promotion
#   checks). A contested proposition is tested first: the proposal continues as `propose_test`.
package custom.concerns.promotion

import data.authz.lib.number
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Not supported
# description: The proposition has fewer independent supports than a consolidation needs.
# custom:
#   code: promotion.not_supported
deny contains reason.new(rego.metadata.rule(), {"supports": count(_supports), "needed": _needed}) if {
	input.action.name == "request_consolidation"
	not _supported
}

# METADATA
# title: Test first
# description: The proposition is contested, so a test is proposed instead of its consolidation.
# custom:
#   code: promotion.test_first
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"tool": "propose_test"}} if {
	input.action.name == "request_consolidation"
	_proposition.state == "contested"
}

_supported if number.at_most(_needed, count(_supports))

default _needed := null

_needed := data.settings.memory.supports_to_consolidate

_proposition := input.context.memory.propositions[input.context.arguments.proposition_id]

_supports := {source | some source in _proposition.supports}
