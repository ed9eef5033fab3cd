# METADATA
# title: Effects
# description: |
#   The only concern that grants. Each effect class has a gate, a list of clauses that all have to hold (tool pattern
#   library, 9.2). "policy" is weighed by the decision, which sees every concern; the approval of commit-high is a
#   STEP_UP of its own.
# schemas:
#   - input: schema.request
package authz.concerns.effects

import data.authz.lib.manifest
import data.authz.lib.purpose
import data.authz.lib.reason
import rego.v2

# METADATA
# title: Gate satisfied
# description: Every clause of the effect class's gate holds.
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
#   unreached: Loading refuses such an entry; the rule is there for manifests that something else wrote into the bundle's data.
deny contains reason.new(rego.metadata.rule(), {"effect_class": _class}) if not _gate(_class)

# METADATA
# title: Pattern mismatch
# description: The tool's entry states a pattern that this policy does not know, or one of another effect class.
# custom:
#   code: effects.pattern_mismatch
#   remedy: State the effect class that the pattern fixes, or leave it out.
#   unreached: Loading refuses such an entry; the rule is there for manifests that something else wrote into the bundle's data.
deny contains reason.new(rego.metadata.rule(), {"pattern": pattern, "effect_class": _class}) if {
	pattern := manifest.entry.pattern
	not _fixes(pattern, _class)
}

# METADATA
# title: Draft only
# description: What a composition returns is a draft, and never kept as a live object (tool pattern library, pattern 5).
# custom:
#   code: effects.draft_only
obligations contains {"id": "draft_only", "on": "ALLOW", "parameters": {}} if {
	manifest.entry.pattern == "composition"
}

_class := object.get(manifest.entry, "effect_class", "unclassified")

# A function, which WebAssembly evaluates without building the whole table for each decision.
_gate("pure") := []

_gate("read-internal") := ["scope"]

_gate("read-external") := ["scope", "purpose"]

_gate("stage") := ["scope"]

_gate("commit-low") := ["scope", "policy"]

_gate("commit-high") := ["scope", "policy"]

_gate("unclassified") := ["scope"]

# The effect class that each pattern fixes (tool pattern library, 9.3). No pattern commits but a request for approval.
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

# An extraction computes only, but it reads its source: it needs that source's scope (pattern 1).
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
