# METADATA
# title: Scoring
# description: |
#   The policy owns the scores of a memory, and not the model (tool boundary document): how sure a proposition may be
#   depends on how many sources it names. `settings.memory.ceilings` has the highest confidence for one source, for two,
#   and so on; the last one holds for more.
package custom.concerns.scoring

import data.authz.lib.number
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Scores unset
# description: The data does not say how sure a proposition may be.
# custom:
#   code: scoring.unset
deny contains reason.new(rego.metadata.rule(), {}) if {
	input.action.name == "propose_proposition"
	not _ceiling
}

# METADATA
# title: Confidence lowered
# description: The proposal is more certain than its sources bear, and goes on with what they do bear.
# custom:
#   code: scoring.confidence_lowered
obligations contains {"id": "transform", "on": "ALLOW", "parameters": {"set": {"confidence": _ceiling}}} if {
	input.action.name == "propose_proposition"
	confidence := input.context.arguments.confidence
	not number.at_most(confidence, _ceiling)
}

# The ceiling for as many sources as there are, or the last one.
_ceiling := ceiling if {
	sources := {source | some source in input.context.arguments.source_ids}
	ceilings := [ceiling | some ceiling in data.settings.memory.ceilings]
	counted := min([count(sources), count(ceilings)])
	number.whole(counted)
	ceiling := ceilings[counted - 1]
	is_number(ceiling)
}
