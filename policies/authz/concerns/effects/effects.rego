# METADATA
# title: Effects
# description: |
#   The only concern that grants. Each effect class has a gate: a list of clauses that must all be true (tool pattern
#   library, 9.2). The decision checks the clause "policy", because it sees every concern. The approval of a commit-high
#   tool is a separate STEP_UP.
# schemas:
#   - input: schema.request
package authz.concerns.effects

import data.authz.lib.manifest
import data.authz.lib.purpose
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Gate satisfied
# description: Every clause of the effect class's gate is true.
# custom:
#   code: effects.gate_satisfied
allow contains reason.new(rego.metadata.rule(), {"effect_class": _class, "clauses": _clauses}) if {
	every clause in _clauses {
		_holds(clause)
	}
}

# METADATA
# title: Effect class unknown
# description: The tool's entry states an effect class that this policy does not know.
# custom:
#   code: effects.unknown
#   remedy: State one of the six effect classes in the manifest.
#   unreached: Loading rejects such an entry. The rule covers manifests that other software wrote into the bundle's data.
deny contains reason.new(rego.metadata.rule(), {"effect_class": _class}) if not _gate(_class)

# METADATA
# title: Pattern mismatch
# description: The tool's entry states an unknown pattern, or a pattern that belongs to another effect class.
# custom:
#   code: effects.pattern_mismatch
#   remedy: State the effect class that belongs to the pattern, or leave the effect class out.
#   unreached: Loading rejects such an entry. The rule covers manifests that other software wrote into the bundle's data.
deny contains reason.new(rego.metadata.rule(), {"pattern": pattern, "effect_class": _class}) if {
	pattern := manifest.entry.pattern
	not _fixes(pattern, _class)
}

# METADATA
# title: Draft only
# description: A composition returns a draft, which is never stored as a live object (tool pattern library, pattern 5).
# custom:
#   code: effects.draft_only
obligations contains {"id": "draft_only", "on": "ALLOW", "parameters": {}} if {
	manifest.entry.pattern == "composition"
}

_class := object.get(manifest.entry, "effect_class", "unclassified")

# This is a function because WebAssembly would build a whole table for each decision.
_gate("pure") := []

_gate("read-internal") := ["scope"]

_gate("read-external") := ["scope", "purpose"]

_gate("stage") := ["scope"]

_gate("commit-low") := ["scope", "policy"]

_gate("commit-high") := ["scope", "policy"]

_gate("unclassified") := ["scope"]

# The effect class of each pattern (tool pattern library, 9.3). Only a request for approval commits.
_fixes("extraction", "pure")

_fixes("lookup", "read-external")

_fixes("validation", "pure")

_fixes("classification", "pure")

_fixes("composition", "pure")

_fixes("action-staging", "stage")

_fixes("approval-request", "commit-low")

_fixes("aggregation", "read-internal")

_fixes("conversion", "pure")

_fixes("search", "read-internal")

# An extraction only computes, but it reads its source, so it needs the scope of that source (pattern 1).
_clauses := ["scope"] if {
	_class == "pure"
	manifest.entry.pattern == "extraction"
} else := _gate(_class)

_holds("scope") if {
	count(manifest.entry.scopes) > 0
	every scope in manifest.entry.scopes {
		scope in input.subject.properties.scopes
	}
}

_holds("purpose") if purpose.allowed

_holds("policy")
