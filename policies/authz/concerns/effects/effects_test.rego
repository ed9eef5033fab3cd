package authz.concerns.effects_test

import data.authz.concerns.effects
import data.authz.lib.fixture_test as fixture

_for(purpose) := [{"op": "replace", "path": "/context/purpose", "value": purpose}]

_no_scopes := [{"op": "remove", "path": "/subject/properties/scopes"}]

_granted(class, clauses) := {["effects.gate_satisfied", {"effect_class": class, "clauses": clauses}]}

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
		"allow": _granted("commit-low", ["scope", "policy"]), "deny": set(),
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
