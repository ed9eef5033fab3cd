# METADATA
# title: Authorization decision
# description: |
#   Combines every concern by deny-overrides: DENY > STEP_UP > ALLOW, and DENY when no concern allows. Concerns are the
#   packages of the baseline under `authz.concerns` and of the user under `custom.concerns`.
package authz

import data.authz.lib.approval
import data.authz.lib.grant as lasting
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
#   Every finding, also of verdicts that did not win, for people who want to know the cause. It includes step-ups that an
#   approval cleared, and obligations of other verdicts. It is always defined.
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
#   Decides whether a whole plan, `{"steps": [{"tool": ...}, ...], "context": {"purpose": ...}}`, is acceptable, in the form
#   of a decision. It is always defined. It allows no call to run: each call is decided separately.
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

# The findings of all concerns, as `[concern, item]`, gathered once for every rule that needs them. Concerns are found by
# their path, so a new concern is only a new folder. `shape.valid` comes first: in OPA, a builtin that gets a wrong type
# would fail the whole decision, while WebAssembly would ignore it.
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

# The reasons to deny. `nothing_allows` is one only if there is no other, so a missing scope gives exactly `scopes.missing`.
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
#   remedy: Build the bundle with this concern, or remove the concern from the configuration.
#   unreached: The build rejects a bundle without a concern that its configuration requires.
_refusals contains reason.new(rego.metadata.rule(), {"concern": concern}) if {
	shape.valid
	some concern in ({name | some name in _required} - _loaded)
}

# A bundle without this list is incomplete, like one without the concerns. Null means "all of them".
default _required := [null]

_required := data.config.required_concerns if is_array(data.config.required_concerns)

# This is a set of names because `not data.authz.concerns[name]` gives wrong results in WebAssembly.
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

# A valid approval clears every step-up, from every concern, and a lasting grant those that people saw. This is the only
# place that does so.
_step_up := set() if approval.valid

else := {item |
	some item in _step_ups
	not lasting.clears(item)
}

_allow contains item if {
	some [concern, item] in _grants
	reason.well_formed(item, concern)
}

# Only the concern `effects` grants. An allow of any other concern only counts as the clause "policy" of a gate.
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
# description: A concern returned a malformed reason or obligation, or a reason with the code of another concern.
# custom:
#   code: decision.reason_malformed
#   remedy: Correct the reasons and obligations of this concern.
#   unreached: The baseline has no malformed reasons. Only a faulty concern of a user can cause this.
_malformed(concern) := reason.new(rego.metadata.rule(), {"concern": concern})

# Obligations name their verdict; the obligations of other verdicts are dropped.
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

# The enforcement point uses this id to check that the answer belongs to its request.
default _request_id := null

_request_id := input.context.request_id if is_string(input.context.request_id)
