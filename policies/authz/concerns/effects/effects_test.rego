package authz.concerns.effects_test

import data.authz.concerns.effects
import data.authz.lib.fixture_test as fixture

_for(purpose) := [{"op": "replace", "path": "/context/purpose", "value": purpose}]

_no_scopes := [{"op": "remove", "path": "/subject/properties/scopes"}]

_granted(class, clauses) := {["effects.gate_satisfied", {"effect_class": class, "clauses": clauses}]}

_mismatch(pattern, class) := {["effects.pattern_mismatch", {"pattern": pattern, "effect_class": class}]}

_cases := {
	"no class: the scope": {
		"patch": [], "entry": {}, "without": [],
		"allow": _granted("unclassified", ["scope"]), "deny": set(),
	},
	"no class, scope not held": {"patch": _no_scopes, "entry": {}, "without": [], "allow": set(), "deny": set()},
	"no class, no scope either": {
		"patch": [], "entry": {"scopes": []}, "without": [],
		"allow": set(), "deny": set(),
	},
	"no scopes at all": {"patch": [], "entry": {}, "without": ["scopes"], "allow": set(), "deny": set()},
	"pure needs nothing": {
		"patch": _no_scopes, "entry": {"effect_class": "pure", "scopes": []}, "without": [],
		"allow": _granted("pure", []), "deny": set(),
	},
	"extraction needs the source's scope": {
		"patch": [], "entry": {"effect_class": "pure", "pattern": "extraction"}, "without": [],
		"allow": _granted("pure", ["scope"]), "deny": set(),
	},
	"extraction without a scope": {
		"patch": [], "entry": {"effect_class": "pure", "pattern": "extraction", "scopes": []}, "without": [],
		"allow": set(), "deny": set(),
	},
	"a pure lookalike of another pattern": {
		"patch": [], "entry": {"effect_class": "pure", "pattern": "conversion", "scopes": []}, "without": [],
		"allow": _granted("pure", []), "deny": set(),
	},
	"read-internal": {
		"patch": [], "entry": {"effect_class": "read-internal"}, "without": [],
		"allow": _granted("read-internal", ["scope"]), "deny": set(),
	},
	"read-internal, one of two scopes": {
		"patch": [], "entry": {"effect_class": "read-internal", "scopes": ["a", "payments.wire.initiate"]},
		"without": [], "allow": set(), "deny": set(),
	},
	"read-external with purpose": {
		"patch": _for("payments.supplier"), "entry": {"effect_class": "read-external"}, "without": [],
		"allow": _granted("read-external", ["scope", "purpose"]), "deny": set(),
	},
	"read-external without purpose": {
		"patch": [], "entry": {"effect_class": "read-external"}, "without": [],
		"allow": set(), "deny": set(),
	},
	"read-external for a purpose that the tool does not name": {
		"patch": _for("marketing"), "entry": {"effect_class": "read-external", "purposes": ["payments.supplier"]},
		"without": [], "allow": set(), "deny": set(),
	},
	"stage": {
		"patch": [], "entry": {"effect_class": "stage"}, "without": [],
		"allow": _granted("stage", ["scope"]), "deny": set(),
	},
	"commit-low": {
		"patch": [], "entry": {"effect_class": "commit-low"}, "without": [],
		"allow": _granted("commit-low", ["scope", "policy"]), "deny": set(),
	},
	"commit-high": {
		"patch": [], "entry": {"effect_class": "commit-high"}, "without": [],
		"allow": _granted("commit-high", ["scope", "policy"]), "deny": set(),
	},
	"a commit that calls itself an extraction keeps its own gate": {
		"patch": [], "entry": {"effect_class": "commit-low", "pattern": "extraction"}, "without": [],
		"allow": _granted("commit-low", ["scope", "policy"]), "deny": _mismatch("extraction", "commit-low"),
	},
	"a class nobody knows": {
		"patch": [], "entry": {"effect_class": "teleport"}, "without": [],
		"allow": set(), "deny": {["effects.unknown", {"effect_class": "teleport"}]},
	},
}

test_effects[name] if {
	some name, case in _cases
	found := effects with input as fixture.changed(case.patch)
		with data.manifests as fixture.manifests(case.entry, case.without)

	fixture.brief(found.allow) == case.allow
	fixture.brief(found.deny) == case.deny
}

# The table of the pattern library (9.3), and every pair that is not in it.
_patterns := {
	"extraction": "pure",
	"lookup": "read-external",
	"validation": "pure",
	"classification": "pure",
	"composition": "pure",
	"action-staging": "stage",
	"approval-request": "commit-low",
	"aggregation": "read-internal",
	"conversion": "pure",
	"search": "read-internal",
}

_classes := ["pure", "read-internal", "read-external", "stage", "commit-low", "commit-high"]

_expected(pattern, class) := set() if class == _patterns[pattern]

else := _mismatch(pattern, class)

test_patterns[name] if {
	some pattern, _ in _patterns
	some class in _classes
	name := sprintf("%s %s", [pattern, class])
	found := effects.deny with input as fixture.request
		with data.manifests as fixture.manifests({"pattern": pattern, "effect_class": class}, [])

	fixture.brief(found) == _expected(pattern, class)
}

# Without a class, the gate of another class would apply. An unknown pattern has no class.
test_patterns_without_their_class[name] if {
	some pattern in ["lookup", "extraction", "wizardry", "", null, true, false, 1, ["lookup"], {"lookup": "unclassified"}]
	name := json.marshal(pattern)
	found := effects.deny with input as fixture.request
		with data.manifests as fixture.manifests({"pattern": pattern}, [])

	fixture.brief(found) == _mismatch(pattern, "unclassified")
}

test_pattern_shape if {
	found := effects.deny with input as fixture.request
		with data.manifests as fixture.manifests({"pattern": "lookup", "effect_class": "pure"}, [])

	found == {{
		"code": "effects.pattern_mismatch",
		"message": "The tool's entry states an unknown pattern, or a pattern that belongs to another effect class.",
		"details": {"pattern": "lookup", "effect_class": "pure"},
		"remedy": "State the effect class that belongs to the pattern, or leave the effect class out.",
	}}
}

test_obligations[pattern] if {
	some pattern, class in _patterns
	found := effects.obligations with input as fixture.request
		with data.manifests as fixture.manifests({"pattern": pattern, "effect_class": class}, [])

	found == {obligation |
		some obligation in [{"id": "draft_only", "on": "ALLOW", "parameters": {}}]
		pattern == "composition"
	}
}

_scopes(values) := [{"op": "replace", "path": "/subject/properties/scopes", "value": values}]

# A name that only resembles the scope does not count, parts do not add up to it, and every scope is needed.
_lacking contains [[name], ["payments.wire.initiate"]] if some name in fixture.near("payments.wire.initiate")

_lacking contains [["payments.wire.initiate"], [name]] if some name in fixture.near("payments.wire.initiate")

_lacking contains [values, ["payments.wire.initiate", "a,b"]] if {
	some values in [["payments", "wire", "initiate", "a", "b"], ["payments.wire.initiate", "a", "b"]]
}

_lacking contains [[scope | some scope in _many; scope != lost], _many] if some lost in _many

_many := ["a", "b", "c", "d", "e"]

test_scopes_that_are_lacking[name] if {
	some [held, needed] in _lacking
	name := json.marshal([held, needed])
	found := effects.allow with input as fixture.changed(_scopes(held))
		with data.manifests as fixture.manifests({"scopes": needed}, [])

	found == set()
}

test_near_a_class[name] if {
	some class in ["pure", "read-external", "stage"]
	some name in fixture.near(class)
	found := effects with input as fixture.request
		with data.manifests as fixture.manifests({"effect_class": name}, [])

	fixture.brief(found.allow) == set()
	fixture.brief(found.deny) == {["effects.unknown", {"effect_class": name}]}
}

test_near_a_pattern[name] if {
	some pattern in ["composition", "extraction"]
	some name in fixture.near(pattern)
	class := _patterns[pattern]
	found := effects with input as fixture.request
		with data.manifests as fixture.manifests({"pattern": name, "effect_class": class}, [])

	fixture.brief(found.deny) == _mismatch(name, class)
	found.obligations == set()
}

test_near_a_purpose if {
	every name in fixture.near("payments.supplier") {
		found := effects.allow with input as fixture.changed(_for(name))
			with data.manifests as fixture.manifests({"effect_class": "read-external", "purposes": ["payments.supplier"]}, [])

		found == set()
	}
}
