package checks.rules.known_names_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.known_names

_records := {
	"input": ["action", "context", "subject"],
	"input.action": ["name"],
	"input.context": null,
	"input.context.approval": ["id"],
	"input.context.arguments": ["amount", "payer"],
	"input.context.arguments.payer": ["id"],
	"data.settings": ["cap"],
	"data.authz.lib.number.entry": ["tier"],
}

_values := {"input.action.name": ["pay", "read"]}

_rules := ["data.authz.lib.number.at_most", "data.authz.lib.number.entry", "data.custom.concerns.c.deny"]

_text(statement) := concat("\n", [
	"import data.authz.lib.number", "import input.context.arguments", statement,
])

_messages(statement) := fixture.messages(found) if {
	modules := fixture.checked([fixture.concern(_text(statement), [])])
	found := known_names.findings with input as object.union(modules, {
		"records": _records,
		"rules": _rules,
		"values": _values,
	})
}

_nowhere(path) := {$"`{path}` does not exist"}

_never(text) := {$"`input.action.name` is never \"{text}\""}

_computed(path) := {$"a member of `{path}` is read by a computed name"}

_given(path) := {$"`{path}` is a record of the request; a call could read unknown names of it"}

_no_rule(path) := {$"`{path}` is neither a rule nor a root of the data"}

_references := {
	`r if input.action.name == "pay"`: set(),
	`r if input.actoin.name == "x"`: _nowhere("input.actoin"),
	`r if { x := input.action; x.nme == "x" }`: _nowhere("input.action.nme"),
	`r if arguments.amuont == 1`: _nowhere("input.context.arguments.amuont"),
	`r if input.context.approval.idd == "x"`: _nowhere("input.context.approval.idd"),
	`r if input.context.anything == 1`: set(),
	`r if input.context.arguments.payer.bos == 1`: _nowhere("input.context.arguments.payer.bos"),
	`r if data.settings.cpa == 1`: _nowhere("data.settings.cpa"),
}

_lookups := {
	`r if object.get(input, "actoin", {}) == 1`: _nowhere("input.actoin"),
	`r if object.get(input, ["action", "nme"], 1) == 1`: _nowhere("input.action.nme"),
	`r if object.get(input.action, "name", "") == "pay"`: set(),
	`r if { some k in ["a"]; object.get(arguments, k, 1) == 1 }`: _nowhere("input.context.arguments.a"),
}

_computed_names := {
	`r if { k := input.x; input[k] == 1 }`: (_computed("input") | _nowhere("input.x")),
	`r if { k := lower("a"); object.get(input.action, k, 1) == 1 }`: _computed("input.action"),
	`r if { k := lower("a"); input.context[k] == 1 }`: _computed("input.context"),
	`r if { some k in ["agent", 1]; input.context[k] == 1 }`: _computed("input.context"),
	`r if { some k, _ in ["agent"]; input.context[k] == 1 }`: _computed("input.context"),
	`r if { k := lower("a"); input.context.arguments[k] == 1 }`: set(),
	`r if { k := lower("a"); data.settings[k] == 1 }`: _computed("data.settings"),
	`r if { k := "name"; object.get(input.action, k, 1) == 1 }`: set(),
	`r if { k := "nme"; object.get(input.action, k, 1) == 1 }`: _nowhere("input.action.nme"),
	`r if { some k in ["amount", "amuont"]; arguments[k] == 1 }`: _nowhere("input.context.arguments.amuont"),
	`r if { some k in {"name", "nme"}; input.action[k] == 1 }`: _nowhere("input.action.nme"),
	`r if { every k in ["cap", "cpa"] { data.settings[k] == 1 } }`: _nowhere("data.settings.cpa"),
}

_results := {
	`r if [input.context.arguments][0]`: set(),
	`r if split(input.action.name, "@")[1] == "x"`: set(),
	concat("\n", [`f(_) := 1`, `r if f(1).refrence`]): set(),
	`r if object.get(split(input.action.nme, "@"), [1], 1) == "x"`: _nowhere("input.action.nme"),
	`r if { some k, v in input.context.arguments; k == v }`: set(),
}

_texts := {
	`r if input.action.name == "pay"`: set(),
	`r if input.action.name == "pya"`: _never("pya"),
	`r if "pya" != input.action.name`: _never("pya"),
	`r if input.action.name = "pya"`: _never("pya"),
	`r if object.get(input.action, "name", "") == "pya"`: _never("pya"),
	`r if input.action.name in {"pay", "pya"}`: _never("pya"),
	`r if input.action.name in ["pay", "pya", 1]`: _never("pya"),
	`r if { x := input.action.name; x == "pya" }`: _never("pya"),
	`r if { some x in ["pay", "pya"]; input.action.name == x }`: _never("pya"),
	`r if input.action.name == input.action.name`: set(),
	`r if "pya" == "pay"`: set(),
	`r if input.action.name in input.context.names`: set(),
	`r if number.entry.tier == 1`: set(),
	`r if number.entry.teir == 1`: _nowhere("data.authz.lib.number.entry.teir"),
	`r if { x := number.entry; object.get(x, "teir", 1) == 1 }`: _nowhere("data.authz.lib.number.entry.teir"),
}

_calls := {
	`r if walk(input, [_, 1])`: _given("input"),
	`r if walk(input.context.arguments, [_, 1])`: set(),
	`r if { x := input.action; sort(x) == 1 }`: _given("x"),
	`r if sort([1, {"a": input.action}]) == 1`: _given("input.action"),
	`r if { count(input.action) == 1; is_object(input.context) }`: set(),
	`r if count(object.get(input.action, "name", "")) == 1`: set(),
	`r if count(lower(input.action.name)) == 1`: set(),
	`r if input.action == {"name": "x"}`: set(),
}

_functions := {
	`f(x) if x.nme == 1`: set(),
	concat("\n", [
		`f(x) if x.idd == 1`, `r if f(input.context.arguments.payer)`,
	]): _nowhere("input.context.arguments.payer.idd"),
	concat("\n", [`f(x) if x.idd == 1`, `r if { some y in ["a"]; f(y) }`]): set(),
	concat("\n", [`f(x) if x.id == 1`, `r if f(object.get(input.context, "approval", 1))`]): set(),
	concat("\n", [`f(x) if x.id == 1`, `r if f({"a": 1})`]): set(),
}

_roots := {
	`r if object.get(input.context, ["memory", "x"], "") == "x"`: set(),
	`r if { some k in ["a"]; object.get(input.context, ["memory", k], "") == "x" }`: set(),
	`r if object.get(input.action, "nme", 1)`: _nowhere("input.action.nme"),
	`r if data.setting.cap == 1`: _no_rule("data.setting.cap"),
	`r if { k := lower("a"); data[k] == 1 }`: (_computed("data") | _no_rule("data[k]")),
	`r if data.config.required_concerns`: set(),
	`r if number.at_most(1, 2)`: set(),
	`r if number.at_mots(1, 2)`: _no_rule("data.authz.lib.number.at_mots"),
	`r if sort(data) == 1`: _given("data"),
	concat("\n", [`q if true`, `r if q with input as {}`]): {"`with` in a concern: names in it are not checked"},
}

test_references[statement] if {
	some statement, expected in _references
	_messages(statement) == expected
}

test_lookups[statement] if {
	some statement, expected in _lookups
	_messages(statement) == expected
}

test_computed_names[statement] if {
	some statement, expected in _computed_names
	_messages(statement) == expected
}

test_results[statement] if {
	some statement, expected in _results
	_messages(statement) == expected
}

test_texts[statement] if {
	some statement, expected in _texts
	_messages(statement) == expected
}

test_calls[statement] if {
	some statement, expected in _calls
	_messages(statement) == expected
}

test_functions[statement] if {
	some statement, expected in _functions
	_messages(statement) == expected
}

test_roots[statement] if {
	some statement, expected in _roots
	_messages(statement) == expected
}

_schemas(schema) := object.union(fixture.concern("r if input.action.name", []), {"tree": object.union(
	fixture.concern("r if input.action.name", []).tree,
	{"annotations": [{"scope": "package", "schemas": [{"path": [], "schema": schema}]}]},
)})

test_schemas if {
	request := [{"type": "var", "value": "schema"}, {"type": "string", "value": "request"}]
	known := {"records": _records, "rules": _rules}
	known_names.findings == set() with input as object.union(fixture.checked([_schemas(request)]), known)
	found := known_names.findings with input as object.union(fixture.checked([_schemas([request[0]])]), known)
	fixture.messages(found) == {
		"METADATA states a schema, which would replace the schema of the request",
	}
}

test_the_baseline_is_no_matter_of_this_check if {
	baseline := fixture.module("authz/concerns/c/c.rego", "package authz.concerns.c\n\nr if input.actoin", [])
	known := {"records": _records, "rules": _rules}
	known_names.findings == set() with input as object.union(fixture.checked([baseline]), known)
}
