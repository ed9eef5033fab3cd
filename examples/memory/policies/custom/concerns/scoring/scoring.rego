# METADATA
# title: Scoring
# description: |
#   The policy owns the scores of a memory, not the model (tool boundary document). The number of sources limits the
#   confidence of a proposition. `settings.memory.ceilings` has the highest confidence for one source, for two, and so on;
#   the last value applies to more.
package custom.concerns.scoring

import data.authz.lib.number
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Scores unset
# description: The data does not limit the confidence of a proposition.
# custom:
#   code: scoring.unset
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "propose_proposition"
	not _ceiling
}

# METADATA
# title: Confidence lowered
# description: The proposal is more confident than its sources allow, so its confidence is lowered to the limit.
# custom:
#   code: scoring.confidence_lowered
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"set": {"confidence": _ceiling}}} if {
	input.action.name == "propose_proposition"
	confidence := input.context.arguments.confidence
	not number.at_most(confidence, _ceiling)
}

# The ceiling for this number of sources, or the last one.
_ceiling := ceiling if {
	sources := {source | some source in input.context.arguments.source_ids}
	ceilings := [ceiling | some ceiling in data.settings.memory.ceilings]
	counted := min([count(sources), count(ceilings)])
	number.whole(counted)
	ceiling := ceilings[counted - 1]
	is_number(ceiling)
}
