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
	"a user's whose name begins as the granting concern's does, too": {
		"ours": {"effects": _commits},
		"custom": {"effectiveness": {"allow": {_reason("effectiveness.proven")}}},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied", "effectiveness.proven"}, "obligations": set(),
	},
	"and the grant itself is none": {
		"ours": {"effects": {"allow": {_grant(["scope", "policy"]), _reason("effects.other")}}},
		"custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"}, "obligations": set(),
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

# A valid approval clears the step-ups of every concern, and nothing else.
_approved_cases := {
	"our step-up and a user's": {
		"ours": {"effects": _effects, "limits": _limits},
		"custom": {"hours": {"step_up": {_reason("hours.outside")}}},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied"},
	},
	"nothing to clear": {
		"ours": {"effects": _effects}, "custom": {},
		"verdict": "ALLOW", "codes": {"effects.gate_satisfied"},
	},
	"a denial stays": {
		"ours": {"effects": _effects, "limits": object.union(_limits, {"deny": {_reason("limits.invalid")}})},
		"custom": {},
		"verdict": "DENY", "codes": {"limits.invalid"},
	},
	"an approval grants nothing": {
		"ours": {"effects": {"allow": set()}, "limits": _limits}, "custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"},
	},
	"an approval is not the clause policy": {
		"ours": {"effects": _commits, "limits": _limits}, "custom": {},
		"verdict": "DENY", "codes": {"decision.nothing_allows"},
	},
	"a malformed step-up denies": {
		"ours": {"effects": _effects, "limits": {"step_up": {1}}}, "custom": {},
		"verdict": "DENY", "codes": {"decision.reason_malformed"},
	},
}

test_approved[name] if {
	some name, case in _approved_cases
	decision := authz.decision with data.authz.concerns as case.ours
		with data.custom.concerns as case.custom
		with data.config as _config
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed([fixture.approved, fixture.digested])

	decision.verdict == case.verdict
	{reason.code | some reason in decision.reasons} == case.codes
}

test_an_approval_that_does_not_hold_clears_nothing if {
	decision := authz.decision with data.authz.concerns as {"effects": _effects, "limits": _limits}
		with data.custom.concerns as {}
		with data.config as _config
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed([fixture.approved])

	decision.verdict == "STEP_UP"
	{reason.code | some reason in decision.reasons} == {"limits.exceeded"}
}

_alert := {"id": "alert", "on": "DENY", "parameters": {}}

_log := {"id": "log_level", "on": "ALLOW", "parameters": {}}

# Every finding, under every verdict.
_findings := {
	"a denial hides nothing": {
		"patch": [],
		"ours": {
			"effects": object.union(_effects, {"obligations": {_log}}),
			"limits": object.union(_limits, {"deny": {_reason("limits.invalid")}}),
		},
		"custom": {"mine": {"obligations": {_alert, "none"}, "deny": {1}, "step_up": {_reason("mine.s")}, "allow": {_reason("mine.a")}}},
		"codes": {
			"deny": {"limits.invalid", "decision.reason_malformed"},
			"step_up": {"limits.exceeded", "mine.s"},
			"allow": {"effects.gate_satisfied", "mine.a"},
		},
		"obligations": {_log, _alert},
	},
	"an approval that cleared": {
		"patch": [fixture.approved, fixture.digested],
		"ours": {"effects": _effects, "limits": _limits}, "custom": {},
		"codes": {"deny": set(), "step_up": {"limits.exceeded"}, "allow": {"effects.gate_satisfied"}},
		"obligations": set(),
	},
	"nothing allows": {
		"patch": [],
		"ours": {"effects": {"allow": set()}, "limits": _limits}, "custom": {},
		"codes": {"deny": {"decision.nothing_allows"}, "step_up": {"limits.exceeded"}, "allow": set()},
		"obligations": set(),
	},
	"a request that is none reaches no concern": {
		"patch": [{"op": "remove", "path": "/subject"}],
		"ours": {"effects": _effects, "limits": _limits},
		"custom": {"mine": {"obligations": {_alert}}},
		"codes": {"deny": {"decision.request_invalid"}, "step_up": set(), "allow": set()},
		"obligations": set(),
	},
}

test_findings[name] if {
	some name, case in _findings
	findings := authz.findings with data.authz.concerns as case.ours
		with data.custom.concerns as case.custom
		with data.config as _config
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed(case.patch)

	{verdict: {reason.code | some reason in findings[verdict]} | some verdict, _ in case.codes} == case.codes
	findings.obligations == case.obligations
	object.keys(findings) == {"deny", "step_up", "allow", "obligations"}
}

test_findings_of_nothing[name] if {
	some value in [null, [], "x", 1, {}]
	name := json.marshal(value)
	findings := authz.findings with input as value

	fixture.brief(findings.deny) == {["decision.request_invalid", {}]}
	object.remove(findings, ["deny"]) == {"step_up": set(), "allow": set(), "obligations": set()}
}

# A concern of any form counts as loaded, in the baseline and in the user's policies.
test_loaded[name] if {
	some part in ["deny", "step_up", "allow", "obligations"]
	some mine in [{"authz": {"mine": {part: set()}}, "custom": {}}, {"authz": {}, "custom": {"mine": {part: set()}}}]
	name := json.marshal(mine)
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
		with input as fixture.changed([{"op": "add", "path": "/context/request_id", "value": "r-1"}])

	decision == {
		"verdict": "DENY",
		"reasons": {{
			"code": "decision.nothing_allows",
			"message": "No rule grants this call.",
			"details": {},
			"remedy": "State scopes for the tool in manifest or governance, or the effect class `pure`.",
		}},
		"obligations": set(),
		"bundle": {"revision": "sha256:1", "release": 3},
		"request_id": "r-1",
	}
}

test_request_without_an_id if {
	every request in [object.remove(fixture.request, ["context"]), {}, {"context": {"request_id": 1}}] {
		authz.decision.request_id == null with input as request
	}
}

test_malformed_names_the_concern if {
	decision := authz.decision with data.authz.concerns as {"effects": _effects}
		with data.custom.concerns as {"mine": {"deny": {1}}}
		with data.config as _config
		with input as fixture.request

	{reason.details | some reason in decision.reasons} == {{"concern": "mine"}}
}

# A malformed request does not reach the concerns, which could misread it.
test_invalid_request if {
	decision := authz.decision with data.authz.concerns as {"effects": _effects, "scopes": {"deny": {"bad"}}}
		with data.custom.concerns as {"mine": {"step_up": {1}, "obligations": {{"id": "x", "on": "DENY", "parameters": {}}}}}
		with data.config as {"required_concerns": ["absent"]}
		with input as {}

	fixture.brief(decision.reasons) == {["decision.request_invalid", {}]}
	decision.obligations == set()
	decision.verdict == "DENY"
}

# Without a configuration, every request has this answer.
test_no_configuration if {
	decision := authz.decision with input as fixture.request
		with data.config as {}
		with data.custom.concerns as {}
		with data.manifests as fixture.manifests({}, [])

	fixture.brief(decision.reasons) == {["decision.concern_not_loaded", {"concern": null}]}
	decision.bundle == null
}

# The real concerns, found by their path. The case is the example of the registry document, on both sides of its limit.
_amounts := {
	20000: {"verdict": "ALLOW", "codes": {"effects.gate_satisfied", "risk.acceptable"}},
	47500: {"verdict": "STEP_UP", "codes": {"limits.exceeded"}},
}

test_the_approved_wire if {
	decision := authz.decision with data.config as _config
		with data.custom.concerns as {}
		with data.manifests as fixture.manifests({}, [])
		with input as fixture.changed([
			{"op": "replace", "path": "/context/arguments/amount", "value": 47500},
			fixture.approved,
			fixture.digested,
		])

	decision.verdict == "ALLOW"
	{reason.code | some reason in decision.reasons} == {"effects.gate_satisfied", "risk.acceptable"}
}

test_a_search if {
	decision := authz.decision with data.config as _config
		with data.custom.concerns as {}
		with data.manifests as fixture.manifests(
			{"pattern": "search", "effect_class": "read-internal", "markings": ["pii"], "limits": [], "risk_tier": "low"},
			[],
		)
		with data.directory as {
			"corpora": {"hr": {"markings": ["pii"]}},
			"entitlements": {"officer-123": {"corpora": ["hr"]}},
		}
		with input as fixture.changed([
			fixture.of("corpus", "hr"),
			{"op": "replace", "path": "/subject/properties/clearances", "value": ["pii"]},
		])

	decision.verdict == "ALLOW"
	decision.obligations == {
		{"id": "mark_result", "on": "ALLOW", "parameters": {"markings": ["pii"]}},
		{"id": "pin_retrieval_snapshot", "on": "ALLOW", "parameters": {}},
	}
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

# Every denial, every step-up and every required concern counts.
test_several_reasons[name] if {
	some part, verdict in {"deny": "DENY", "step_up": "STEP_UP"}
	some size in [1, 2, 3, 5]
	name := sprintf("%s %d", [part, size])
	concerns := {sprintf("c%d", [number]) | some number in numbers.range(1, size)}
	custom := {concern: {part: {_reason(sprintf("%s.x", [concern]))}} | some concern in concerns}
	decision := authz.decision with data.authz.concerns as {"effects": _effects}
		with data.custom.concerns as custom
		with data.config as _config
		with input as fixture.request

	decision.verdict == verdict
	{reason.code | some reason in decision.reasons} == {sprintf("%s.x", [concern]) | some concern in concerns}
}

test_each_of_many_required_concerns[lost] if {
	many := ["effects", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"]
	some lost in array.slice(many, 1, count(many))
	custom := {concern: {"deny": set()} | some concern in many; not concern in ["effects", lost]}
	decision := authz.decision with data.authz.concerns as {"effects": _effects}
		with data.custom.concerns as custom
		with data.config as {"required_concerns": many}
		with input as fixture.request

	fixture.brief(decision.reasons) == {["decision.concern_not_loaded", {"concern": lost}]}
}

# A name that only resembles the granting concern grants nothing, and does not count as a required concern.
test_near_the_granting_concern if {
	every name in fixture.near("effects") {
		decision := authz.decision with data.authz.concerns as {name: _effects}
			with data.custom.concerns as {name: _effects}
			with data.config as {"required_concerns": ["effects"]}
			with input as fixture.request

		decision.verdict == "DENY"
	}
}

test_near_a_verdict[name] if {
	some name in (fixture.near("ALLOW") | {"DENY ", "deny", "STEP_UP.x", "step_up"})
	decision := authz.decision with data.authz.concerns as {"effects": _effects}
		with data.custom.concerns as {"mine": {"obligations": {{"id": "x", "on": name, "parameters": {}}}}}
		with data.config as _config
		with input as fixture.request

	{reason.code | some reason in decision.reasons} == {"decision.reason_malformed"}
}
