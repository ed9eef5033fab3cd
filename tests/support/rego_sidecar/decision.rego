# The smallest policy: it allows every request and names its action.
package authz

decision := {
	"verdict": "ALLOW",
	"reasons": [{"code": "effects.gate_satisfied", "message": "", "details": {"id": object.get(input, "id", null)}}],
	"obligations": [],
	"bundle": null,
} if {
	object.get(input, "ask", "") == ""
}

# This fails in a builtin. By default OPA would leave the rule undefined, and a deny with it.
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
