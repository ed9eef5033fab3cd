package authz

decision := {"verdict": verdict, "reasons": {"b", "a"}} if input.defined

verdict := "DENY" if input.a > 1

verdict := "ALLOW" if input.b > 1

unused if {
	input.never
	input.ever
}
