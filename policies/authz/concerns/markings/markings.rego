# METADATA
# title: Markings
# description: |
#   Mandatory access control: the subject is cleared for every marking of the data, and the tool may touch data with these
#   markings. A search without clearance is rejected, and its results are never filtered (tool pattern library, pattern 10).
# schemas:
#   - input: schema.request
package authz.concerns.markings

import data.authz.lib.manifest
import data.authz.lib.reason
import data.authz.lib.resource
import rego.v2

# METADATA
# title: Not cleared
# description: The data has a marking that is not among the subject's clearances.
# custom:
#   code: markings.not_cleared
#   remedy: Ask for the missing clearances. A session has them in the claim `clearances`, a list.
deny contains reason.new(rego.metadata.rule(), {"missing": sort(missing)}) if {
	missing := {marking |
		some marking in resource.markings
		not marking in input.subject.properties.clearances
	}
	count(missing) > 0
}

# METADATA
# title: Not allowed
# description: The data has a marking that the tool is not declared to touch.
# custom:
#   code: markings.not_allowed
#   remedy: Use a tool that declares the marking, or add the marking to the `markings` of this tool.
deny contains reason.new(rego.metadata.rule(), {"markings": sort(refused)}) if {
	refused := {marking |
		some marking in resource.markings
		not marking in manifest.entry.markings
	}
	count(refused) > 0
}

# METADATA
# title: Unreadable
# description: The directory's record of the corpus or document is malformed, so its markings are unknown.
# custom:
#   code: markings.unreadable
#   remedy: Correct the directory's record. Its `markings` are a list of texts, and its `corpus` is one of `corpora`.
deny contains reason.new(rego.metadata.rule(), {"type": input.resource.type, "id": input.resource.id}) if {
	resource.unreadable
}

# METADATA
# title: Result marked
# description: A result that is found in marked data, or computed from it, gets the markings (tool pattern library, patterns 8 and 10).
# custom:
#   code: markings.result_marked
obligations contains {"id": "mark_result", "on": "ALLOW", "parameters": {"markings": sort(resource.markings)}} if {
	_inherited
	count(resource.markings) > 0
}

_inherited if manifest.entry.pattern == "search"

_inherited if manifest.entry.pattern == "aggregation"

_inherited if input.resource.type == "corpus"

_inherited if input.resource.type == "document"
