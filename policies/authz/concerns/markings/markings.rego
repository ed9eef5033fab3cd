# METADATA
# title: Markings
# description: |
#   Mandatory access control: the subject is cleared for every marking of the data, and the tool may touch data so
#   marked. A search without clearance is refused, never filtered (tool pattern library, pattern 10).
# schemas:
#   - input: schema.request
package authz.concerns.markings

import data.authz.lib.manifest
import data.authz.lib.reason

# METADATA
# title: Not cleared
# description: The data carries a marking for which the subject holds no clearance.
# custom:
#   code: markings.not_cleared
deny contains reason.new(rego.metadata.rule(), {"missing": missing}) if {
	missing := [marking |
		some marking in _markings
		not _cleared(marking)
	]
	count(missing) > 0
}

# METADATA
# title: Not allowed
# description: The data carries a marking that the tool is not declared to touch.
# custom:
#   code: markings.not_allowed
deny contains reason.new(rego.metadata.rule(), {"markings": refused}) if {
	refused := [marking |
		some marking in input.resource.properties.markings
		not _allowed(marking)
	]
	count(refused) > 0
}

_cleared(marking) if marking in input.subject.properties.clearances

_allowed(marking) if marking in manifest.entry.markings

# Markings that nobody knows (absent, which is not empty) count as all that the tool may touch.
_markings := input.resource.properties.markings

_markings := manifest.entry.markings if not input.resource.properties.markings
