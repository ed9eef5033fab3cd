package authz.concerns.risk_test

import data.authz.concerns.risk
import data.authz.lib.fixture_test as fixture

_cases := {
	"low": {"entry": {"risk_tier": "low"}, "allow": {["risk.acceptable", {"risk_tier": "low"}]}},
	"medium": {"entry": {"risk_tier": "medium"}, "allow": {["risk.acceptable", {"risk_tier": "medium"}]}},
	"high": {"entry": {"risk_tier": "high"}, "allow": {["risk.acceptable", {"risk_tier": "high"}]}},
	"unknown": {"entry": {"risk_tier": "extreme"}, "allow": set()},
	"mistyped": {"entry": {"risk_tier": 1}, "allow": set()},
}

test_risk[name] if {
	some name, case in _cases
	found := risk.allow with input as fixture.request
		with data.manifests as fixture.manifests(case.entry, [])

	fixture.brief(found) == case.allow
}

test_absent if {
	found := risk.allow with input as fixture.request
		with data.manifests as fixture.manifests({}, ["risk_tier"])

	found == set()
}

test_near_a_tier[name] if {
	some tier in ["low", "medium", "high"]
	some name in fixture.near(tier)
	found := risk.allow with input as fixture.request
		with data.manifests as fixture.manifests({"risk_tier": name}, [])

	found == set()
}
