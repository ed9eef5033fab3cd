# The smallest possible baseline, for the tests of the build.
package authz

# METADATA
# entrypoint: true
decision := {"verdict": _verdict, "reasons": _reasons, "obligations": [], "bundle": data.config.bundle}

default _verdict := "ALLOW"

_verdict := "DENY" if count(_denied) > 0

_reasons := _denied if _verdict == "DENY"

_reasons := {reason | some concern; some reason in data.authz.concerns[concern].allow} if _verdict == "ALLOW"

_denied := {reason | some concern; some reason in data.authz.concerns[concern].deny} | {reason |
	some concern
	some reason in data.custom.concerns[concern].deny
}

# METADATA
# entrypoint: true
findings := {"deny": _denied, "step_up": set(), "allow": set(), "obligations": set()}

# METADATA
# entrypoint: true
plan := {"verdict": "ALLOW", "reasons": set(), "obligations": set(), "bundle": null}
