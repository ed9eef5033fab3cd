# METADATA
# title: Authorization decision
# description: |
#   Combines every concern, ours under `authz.concerns` and the user's under `custom.concerns`, by deny-overrides:
#   DENY > STEP_UP > ALLOW, and DENY when nothing allows.
package authz

import data.authz.lib.approval
import data.authz.lib.reason
import data.authz.lib.shape
import data.authz.planning
import rego.v2

# METADATA
# title: Decision
# description: The one document that enforcement points query. It is always defined.
# entrypoint: true
decision := {
	"verdict": _verdict,
	"reasons": _reasons,
	"obligations": _obligations,
	"bundle": _bundle,
	"request_id": _request_id,
}

# METADATA
# title: Findings
# description: |
#   Everything that fired, whichever verdict won, for people who want to know why. Step-ups that an approval cleared and
#   obligations of other verdicts are among it. It is always defined.
# entrypoint: true
findings := {
	"deny": _deny,
	"step_up": _step_ups,
	"allow": _allow,
	"obligations": _fulfillables,
}

# METADATA
# title: Plan
# description: |
#   Whether a whole plan is acceptable, `{"steps": [{"tool": ...}, ...], "context": {"purpose": ...}}`, in the form of a
#   decision. It is always defined, and lets no call run: each is decided by itself.
# entrypoint: true
plan := {
	"verdict": _plan_verdict,
	"reasons": _plan_reasons,
	"obligations": set(),
	"bundle": _bundle,
}

_plan_verdict := "ALLOW" if count(planning.deny) == 0

else := "DENY"

_plan_reasons := planning.allow if _plan_verdict == "ALLOW"

else := planning.deny

default _verdict := "DENY"

_verdict := "STEP_UP" if {
	count(_deny) == 0
	count(_step_up) > 0
}

_verdict := "ALLOW" if {
	count(_deny) == 0
	count(_step_up) == 0
}

_reasons := _deny if _verdict == "DENY"

_reasons := _step_up if _verdict == "STEP_UP"

_reasons := _allow if _verdict == "ALLOW"

# What concerns find, gathered once for every rule that asks, as `[concern, item]`. Concerns are found by their path, so that
# a new concern is a new folder and nothing else. `shape.valid` stands first: a builtin that met a wrong type would fail the
# whole decision in OPA, and not in WebAssembly.
_denials contains [concern, item] if {
	shape.valid
	some concern
	some item in data.authz.concerns[concern].deny
}

_denials contains [concern, item] if {
	shape.valid
	some concern
	some item in data.custom.concerns[concern].deny
}

_escalations contains [concern, item] if {
	shape.valid
	some concern
	some item in data.authz.concerns[concern].step_up
}

_escalations contains [concern, item] if {
	shape.valid
	some concern
	some item in data.custom.concerns[concern].step_up
}

_grants contains [concern, item] if {
	shape.valid
	some concern
	some item in data.authz.concerns[concern].allow
}

_grants contains [concern, item] if {
	shape.valid
	some concern
	some item in data.custom.concerns[concern].allow
}

_demands contains [concern, item] if {
	shape.valid
	some concern
	some item in data.authz.concerns[concern].obligations
}

_demands contains [concern, item] if {
	shape.valid
	some concern
	some item in data.custom.concerns[concern].obligations
}

# What denies. `nothing_allows` only when nobody denies, so that a missing scope is exactly `scopes.missing`.
_deny := _refusals if count(_refusals) > 0

else := {_nothing_allows} if not _granted

else := set()

_refusals contains _request_invalid if not shape.valid

_refusals contains _counted(item, concern) if {
	some [concern, item] in _denials
}

_refusals contains _malformed(concern) if {
	some [concern, item] in _escalations
	not reason.well_formed(item, concern)
}

_refusals contains _malformed(concern) if {
	some [concern, item] in _demands
	not _fulfillable(item)
}

_fulfillable(obligation) if {
	is_object(obligation)
	is_string(obligation.id)
	obligation.on in ["ALLOW", "DENY", "STEP_UP"]
	is_object(obligation.parameters)
	count(obligation) == 3
}

# METADATA
# title: Concern not loaded
# description: A concern that the configuration requires is not in the bundle.
# scope: rule
# custom:
#   code: decision.concern_not_loaded
#   remedy: Build the bundle with this concern, which its configuration requires.
#   unreached: The build refuses a bundle that lacks a concern which its configuration requires.
_refusals contains reason.new(rego.metadata.rule(), {"concern": concern}) if {
	shape.valid
	some concern in ({name | some name in _required} - _loaded)
}

# A bundle without the list is as incomplete as one without the concerns: null stands for "all of them".
default _required := [null]

_required := data.config.required_concerns if is_array(data.config.required_concerns)

# A set of the names found, and never `not data.authz.concerns[name]`, which is wrong in WebAssembly.
_loaded contains concern if data.authz.concerns[concern].deny

_loaded contains concern if data.authz.concerns[concern].step_up

_loaded contains concern if data.authz.concerns[concern].allow

_loaded contains concern if data.authz.concerns[concern].obligations

_loaded contains concern if data.custom.concerns[concern].deny

_loaded contains concern if data.custom.concerns[concern].step_up

_loaded contains concern if data.custom.concerns[concern].allow

_loaded contains concern if data.custom.concerns[concern].obligations

_step_ups contains item if {
	some [concern, item] in _escalations
	reason.well_formed(item, concern)
}

# A valid approval clears every reason to ask a person, whichever concern's: here, and nowhere else.
_step_up := set() if approval.valid

else := _step_ups

_allow contains item if {
	some [concern, item] in _grants
	reason.well_formed(item, concern)
}

# Only the concern `effects` grants. Any other allow, a user's included, is no more than the clause "policy" of a gate.
_granted if {
	some grant in data.authz.concerns.effects.allow
	reason.well_formed(grant, "effects")
	_clauses_hold(grant.details.clauses)
}

_clauses_hold(clauses) if not "policy" in clauses

_clauses_hold(_) if {
	some item in _allow
	not startswith(item.code, "effects.")
}

_counted(item, concern) := item if reason.well_formed(item, concern)

else := _malformed(concern)

# METADATA
# title: Request invalid
# description: The request does not have the shape of the schema, so concerns could misread it.
# custom:
#   code: decision.request_invalid
#   remedy: Correct the field that the details name.
_request_invalid := reason.new(rego.metadata.rule(), {})

# METADATA
# title: Nothing allows
# description: No rule grants this call.
# custom:
#   code: decision.nothing_allows
#   remedy: State scopes for the tool in manifest or governance, or the effect class `pure`.
_nothing_allows := reason.new(rego.metadata.rule(), {})

# METADATA
# title: Reason malformed
# description: A concern found something that is no reason of its own, or no obligation.
# custom:
#   code: decision.reason_malformed
#   remedy: Correct what this concern gives as reasons and obligations.
#   unreached: The baseline's rules say nothing malformed; only a broken concern of a user's could.
_malformed(concern) := reason.new(rego.metadata.rule(), {"concern": concern})

# Obligations name the verdict that they belong to; those of other verdicts are dropped.
_obligations contains obligation if {
	some obligation in _fulfillables
	obligation.on == _verdict
}

_fulfillables contains obligation if {
	some [_, obligation] in _demands
	_fulfillable(obligation)
}

default _bundle := null

_bundle := data.config.bundle

# So that the enforcement point sees that the answer is the one to its request.
default _request_id := null

_request_id := input.context.request_id if is_string(input.context.request_id)
