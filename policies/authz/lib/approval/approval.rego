# METADATA
# title: The approval
# description: |
#   Tells whether the approval that the enforcement point took from its store is valid for this call. The store has checked
#   it before; the policy does not rely on that.
# schemas:
#   - input: schema.request
package authz.lib.approval

import data.authz.lib.manifest
import data.authz.lib.number
import data.authz.lib.shape
import data.authz.lib.subject
import rego.v2

# The request carries an approval of exactly this call. It has not expired, and enough people with the right roles granted
# it. Where the entry names `$subject`, the person whose own agent makes the call may grant it as well.
# A missing or mistyped field, in the approval or in the tool's entry, makes it invalid.
valid if {
	approval := input.context.approval
	shape.named(approval.id)
	shape.named(approval.call_digest)
	approval.call_digest == input.context.call_digest
	number.at_most(0, approval.age_seconds)
	number.at_most(approval.age_seconds, manifest.entry.approval.expires_seconds)
	enough(approval.grants)
}

# Enough people with the right roles gave these grants. A grant with a missing or mistyped field invalidates all of them.
enough(grants) if {
	is_array(grants)
	every grant in grants {
		_well_formed(grant)
	}
	number.at_most(1, manifest.entry.approval.quorum)
	number.at_most(manifest.entry.approval.quorum, count(_people(grants)))
}

_well_formed(grant) if {
	shape.named(grant.sub)
	_issuer(object.get(grant, "iss", null))
	is_array(grant.roles)
	shape.strings(grant, "roles")
}

_issuer(null)

_issuer(iss) if shape.named(iss)

# Each person counts once. A grant without an issuer counts only if no grant with the same name has one.
_people(grants) := issued | {[null, grant.sub] |
	some grant in counting
	not grant.sub in {sub | some [_, sub] in issued}
} if {
	is_array(manifest.entry.approval.approvers)
	counting := {grant | some grant in grants; _entitled(grant); not _acts(grant)}
	issued := {[grant.iss, grant.sub] | some grant in counting; _issued(grant)}
}

# An empty list of roles means that no person may approve.
_entitled(grant) if {
	some role in grant.roles
	role in manifest.entry.approval.approvers
	role != "$subject"
	not _same(grant, {"sub": input.subject.id, "iss": _issuer_of(input.subject.properties)})
}

# The person whose own agent makes the call, with a token that is not the call's token, as the store has checked.
_entitled(grant) if {
	"$subject" in manifest.entry.approval.approvers
	not manifest.entry.effect_class == "commit-high"
	_by_agent
	grant.roles == ["$subject"]
	grant.sub == input.subject.id
	_issuer_of(grant) == _issuer_of(input.subject.properties)
}

_by_agent if count(subject.agents) > 0

_by_agent if shape.named(input.context.agent)

_issuer_of(person) := person.iss if {
	_issued(person)
} else := null

_acts(grant) if {
	some agent in subject.agents
	_same(grant, agent)
}

# The application names the agent without an issuer.
_acts(grant) if grant.sub == input.context.agent

# Two people with the same name are different only if both issuers are known and differ.
_same(one, other) if {
	one.sub == other.sub
	not _told_apart(one, other)
}

_told_apart(one, other) if {
	_issued(one)
	_issued(other)
	one.iss != other.iss
}

_issued(person) if shape.named(person.iss)
