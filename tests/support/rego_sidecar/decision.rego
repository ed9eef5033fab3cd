# The smallest policy: it allows, and says for what.
package authz

decision := {
	"verdict": "ALLOW",
	"reasons": [{"code": "effects.gate_satisfied", "message": "", "details": {"id": object.get(input, "id", null)}}],
	"obligations": [],
	"bundle": null,
} if {
	object.get(input, "ask", "") == ""
}

# Fails in a builtin: OPA's default would leave this rule undefined, and a deny with it.
decision := {
	"verdict": "ALLOW",
	"reasons": [{"code": "effects.gate_satisfied", "message": "", "details": {"number": to_number(input.id)}}],
	"obligations": [],
	"bundle": null,
} if {
	input.ask == "number"
}

# Two values for one document.
decision := {"verdict": verdict} if {
	input.ask == "conflict"
	some verdict in ["ALLOW", "DENY"]
}
