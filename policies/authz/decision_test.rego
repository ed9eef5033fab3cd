package authz_test

import data.authz
import data.authz.lib.fixture_test as fixture

_reason(code) := {"code": code, "message": "", "details": {}}

_grant(clauses) := {"code": "effects.gate_satisfied", "message": "", "details": {"clauses": clauses}}

_effects := {"allow": {_grant(["scope"])}}

_commits := {"allow": {_grant(["scope", "policy"])}}

_limits := {"step_up": {_reason("limits.exceeded")}, "deny": set()}

_config := {"required_concerns": ["effects"], "bundle": {"revision": "sha256:1", "release": 3}}

_cases := {
	"a grant allows, with its obligations": {
		"ours": {"effects": object.union(_effects, {"obligations": {
			{"id": "log_level", "on": "ALLOW", "parameters": {}},
			{"id": "alert", "on": "DENY", "parameters": {}},
		}})},
		"custom": {},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied"}, "obligations": {"log_level"},
	},
	"step-up beats allow": {
		"ours": {"effects": _effects, "limits": _limits},
		"custom": {},
		"verdict": "STEP_UP", "codes": {"limits.exceeded"}, "obligations": set(),
	},
	"deny beats step-up, and the denials of every concern are kept": {
		"ours": {
			"effects": _effects,
			"limits": _limits,
			"scopes": {"deny": {_reason("scopes.missing")}},
		},
		"custom": {"sanctions": {
			"deny": {_reason("sanctions.not_clear")},
			"obligations": {{"id": "alert", "on": "DENY", "parameters": {}}},
		}},
		"verdict": "DENY", "codes": {"scopes.missing", "sanctions.not_clear"}, "obligations": {"alert"},
	},
	"a user's step-up": {
		"ours": {"effects": _effects},
		"custom": {"hours": {"step_up": {_reason("hours.outside")}}},
		"verdict": "STEP_UP", "codes": {"hours.outside"}, "obligations": set(),
	},
	"a step-up without a grant is a deny": {
		"ours": {"effects": {"allow": set()}, "limits": _limits},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"nobody else grants": {
		"ours": {"effects": {"allow": set()}, "risk": {"allow": {_reason("risk.acceptable")}}},
		"custom": {"mine": {"allow": {_reason("mine.fine")}}},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"a user's concern of that name does not grant": {
		"ours": {"effects": {"allow": set()}},
		"custom": {"effects": _effects},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"a commit needs the clause policy": {
		"ours": {"effects": _commits},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"which any allow gives": {
		"ours": {"effects": _commits, "risk": {"allow": {_reason("risk.acceptable")}}},
		"custom": {},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied", "risk.acceptable"}, "obligations": set(),
	},
	"a user's too": {
		"ours": {"effects": _commits},
		"custom": {"mine": {"allow": {_reason("mine.fine")}}},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied", "mine.fine"}, "obligations": set(),
	},
	"but not with another concern's code": {
		"ours": {"effects": _commits},
		"custom": {"mine": {"allow": {_reason("yours.fine"), 1, "mine.fine"}}},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"a malformed grant grants nothing": {
		"ours": {"effects": {"allow": {{"code": "effects.gate_satisfied"}}}},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"a malformed denial still denies": {
		"ours": {"effects": _effects, "scopes": {"deny": {"bad"}}},
		"custom": {"mine": {"deny": {_reason("yours.bad")}}},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"a malformed step-up denies": {
		"ours": {"effects": _effects, "limits": {"step_up": {1}}},
		"custom": {"mine": {"step_up": {{"code": "mine.x"}}}},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"an obligation that is none denies": {
		"ours": {"effects": _effects},
		"custom": {"mine": {"obligations": {{"id": "redact", "parameters": {}}}}},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"an obligation for no verdict denies": {
		"ours": {"effects": object.union(_effects, {"obligations": {{"id": "x", "on": "allow", "parameters": {}}}})},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"an obligation with more than its fields denies": {
		"ours": {"effects": _effects},
		"custom": {"mine": {"obligations": {"mask", {"id": "x", "on": "ALLOW", "parameters": {}, "unless": true}}}},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"a user's obligation": {
		"ours": {"effects": _effects},
		"custom": {"mine": {"obligations": {{"id": "redact", "on": "ALLOW", "parameters": {"n": 1}}}}},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied"}, "obligations": {"redact"},
	},
	"a grant of another concern's code grants nothing": {
		"ours": {"effects": {"allow": {object.union(_grant(["scope"]), {"code": "risk.acceptable"})}}},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
	},
	"our own malformed step-up denies": {
		"ours": {"effects": _effects, "limits": {"step_up": {{"code": "limits.exceeded"}}}},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"a user's malformed step-up denies": {
		"ours": {"effects": _effects},
		"custom": {"mine": {"step_up": {"yours.x"}}},
		"verdict": "DENY", "codes": {"decision.reason_malformed"}, "obligations": set(),
	},
	"a required concern is not there": {
		"ours": {"risk": {"allow": {_reason("risk.acceptable")}}},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.concern_not_loaded"}, "obligations": set(),
	},
}

test_decision[name] if {
	some name, case in _cases
	decision := authz.decision with data.authz.concerns as case.ours
		with data.custom.concerns as case.custom
		with data.config as _config
		with input as fixture.request

	decision.verdict == case.verdict
	{reason.code | some reason in decision.reasons} == case.codes
	{obligation.id | some obligation in decision.obligations} == case.obligations
	decision.bundle == {"revision": "sha256:1", "release": 3}
}

# A concern counts as loaded whatever it is made of, ours as well as the user's.
test_loaded[name] if {
	some name in ["deny", "step_up", "allow", "obligations"]
	some mine in [{"authz": {"mine": {name: set()}}, "custom": {}}, {"authz": {}, "custom": {"mine": {name: set()}}}]
	decision := authz.decision with data.authz.concerns as object.union({"effects": _effects}, mine.authz)
		with data.custom.concerns as mine.custom
		with data.config.required_concerns as ["mine"]
		with input as fixture.request

	decision.verdict == "ALLOW"
}

# One test pins the whole document, so that a change of its shape is deliberate.
test_whole_document if {
	decision := authz.decision with data.authz.concerns as {"effects": {"allow": set()}}
		with data.custom.concerns as {}
		with data.config as _config
		with input as fixture.request

	decision == {
		"verdict": "DENY",
		"reasons": {{
			"code": "decision.nothing_allows",
			"message": "No rule grants this call.",
			"details": {},
		}},
		"obligations": set(),
		"bundle": {"revision": "sha256:1", "release": 3},
	}
}

test_malformed_names_the_concern if {
	decision := authz.decision with data.authz.concerns as {"effects": _effects}
		with data.custom.concerns as {"mine": {"deny": {1}}}
		with data.config as _config
		with input as fixture.request

	{reason.details | some reason in decision.reasons} == {{"concern": "mine"}}
}

# The request is not passed on to concerns that could misread it.
test_invalid_request if {
	decision := authz.decision with data.authz.concerns as {"effects": _effects, "scopes": {"deny": {"bad"}}}
		with data.custom.concerns as {"mine": {"step_up": {1}, "obligations": {{"id": "x", "on": "DENY", "parameters": {}}}}}
		with data.config as {"required_concerns": ["absent"]}
		with input as {}

	fixture.brief(decision.reasons) == {["decision.request_invalid", {}]}
	decision.obligations == set()
	decision.verdict == "DENY"
}

# What a deployment without any configuration answers, whatever the request.
test_no_configuration if {
	decision := authz.decision with input as fixture.request
		with data.custom.concerns as {}
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(decision.reasons) == {["decision.concern_not_loaded", {"concern": null}]}
	decision.bundle == null
}

# The real concerns, found by their path: the worked example of the registry document, on either side of its limit.
_amounts := {
	20000: {"verdict": "ALLOW", "codes": {"effects.gate_satisfied", "risk.acceptable"}},
	47500: {"verdict": "STEP_UP", "codes": {"limits.exceeded"}},
}

test_the_wire[amount] if {
	some amount, expected in _amounts
	decision := authz.decision with data.config as _config
		with data.custom.concerns as {}
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed([{"op": "replace", "path": "/context/arguments/amount", "value": amount}])

	decision.verdict == expected.verdict
	{reason.code | some reason in decision.reasons} == expected.codes
}
