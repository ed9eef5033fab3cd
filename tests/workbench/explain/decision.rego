package authz

decision := {"verdict": "DENY", "reasons": findings.deny} if true

findings := {"deny": _all}

_all contains item if {
	not input.broken
	some concern
	some item in data.authz.concerns[concern].deny
}

_all contains _invalid if input.broken

# METADATA
# custom: {code: decision.invalid}
_invalid := {"code": "decision.invalid"}
