package checks.rules.partial_builtins_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.partial_builtins

_no_text(name, shown) := {$"`{name}` fails if `{shown}` is not of type string"}

# Bodies of a denial, each with its findings. There are several tables, because a test may take five seconds.
_unknown := {
	"an attribute": {"body": "trim_space(input.context.a) == x", "found": _no_text("trim_space", "input.context.a")},
	"settings": {"body": "trim_space(data.settings.a) == x", "found": _no_text("trim_space", "data.settings.a")},
	"the directory": {"body": "trim_space(data.directory.a) == x", "found": _no_text("trim_space", "data.directory.a")},
	"a text that may be null": {"body": "trim_space(input.context.purpose) == x", "found": _no_text("trim_space", "input.context.purpose")},
	"a variable for it": {"body": "y := input.context.a\ntrim_space(y) == x", "found": _no_text("trim_space", "y")},
	"an element": {"body": "some y in input.context.a\ntrim_space(y) == x", "found": _no_text("trim_space", "y")},
	"a field of an element": {"body": "some y in input.context.a\ntrim_space(y.b) == x", "found": _no_text("trim_space", "y.b")},
	"a key": {"body": "some y, _ in input.context.a\ntrim_space(y) == x", "found": _no_text("trim_space", "y")},
	"an argument without a value": {
		"body": `trim_space(object.get(input.context, "a", "")) == x`,
		"found": _no_text("trim_space", "object.get(…)"),
	},
	"in another call": {"body": "trim_space(trim_space(input.context.a)) == x", "found": _no_text("trim_space", "input.context.a")},
	"in an every": {
		"body": "every y in input.context.a {\ntrim_space(y) == x\n}",
		"found": _no_text("trim_space", "y"),
	},
	"several types would do": {
		"body": "count(input.context.a) == 1",
		"found": {"`count` fails if `input.context.a` is not of type array or object or set or string"},
	},
	"elements of a list": {
		"body": "is_array(input.context.a)\nconcat(x, input.context.a) == y",
		"found": {"`concat` fails if `x` is not of type string", "`concat` fails if an element of `input.context.a` is not of type string"},
	},
	"elements of a comprehension": {
		"body": "concat(\"\", [y | some y in input.context.a]) == x",
		"found": {"`concat` fails if an element of `a comprehension` is not of type string"},
	},
	"elements that are written out": {
		"body": "concat(\"\", [\"a\", input.context.a]) == x",
		"found": {"`concat` fails if an element of `a list` is not of type string"},
	},
	"a key of a list": {"body": "some y, _ in input.subject.properties.scopes\ntrim_space(y) == x", "found": _no_text("trim_space", "y")},
}

_guarded := {
	"a guard of a variable that is unified": {"body": "y = input.context.a\nis_string(input.context.a)\ntrim_space(y) == x", "found": set()},
	"a guard": {"body": "is_string(input.context.a)\ntrim_space(input.context.a) == x", "found": set()},
	"a guard of the variable": {"body": "y := input.context.a\nis_string(y)\ntrim_space(y) == x", "found": set()},
	"a guard of what the variable stands for": {
		"body": "is_string(input.context.a)\ny := input.context.a\ntrim_space(y) == x",
		"found": set(),
	},
	"a guard by variables over variables": {
		"body": "y := input.context\nz := y.a\nis_string(z)\ntrim_space(input.context.a) == x",
		"found": set(),
	},
	"a guard around a comprehension": {
		"body": "is_string(input.context.a)\ny := [1 | trim_space(input.context.a) == x]",
		"found": set(),
	},
	"a guard in a comprehension": {
		"body": "y := [trim_space(z) | some z in input.context.a; is_string(z)]",
		"found": set(),
	},
	"a guard in an every": {
		"body": "every y in input.context.a {\nis_string(y)\ntrim_space(y) == x\n}",
		"found": set(),
	},
	"a guard of every element": {
		"body": "every y in input.context.a {\nis_string(y)\n}\nsome z in input.context.a\ntrim_space(z) == x",
		"found": set(),
	},
	"guards of a list and its elements": {
		"body": "y := input.context.a\nis_array(y)\nevery z in y {\nis_string(z)\n}\nconcat(\"\", sort(y)) == x",
		"found": set(),
	},
	"a guard of an object for its default": {
		"body": "is_string(input.context.a)\ntrim_space(object.get(input.context, \"a\", \"\")) == x",
		"found": set(),
	},
}

_unguarded := {
	"a guard with another input": {
		"body": "is_string(input.context.a) with input as {}\ntrim_space(input.context.a) == x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a guard of a variable around one of the same name": {
		"body": "y := input.context.a\nis_string(y)\nz := [trim_space(y) | some y in input.context.b]",
		"found": _no_text("trim_space", "y"),
	},
	"a guard of something else in an every": {
		"body": "every y in input.context.a {\nis_string(x)\ny == x\n}\nsome z in input.context.a\ntrim_space(z) == x",
		"found": _no_text("trim_space", "z"),
	},
	"a guard that comes late": {
		"body": "trim_space(input.context.a) == x\nis_string(input.context.a)",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a guard under not": {
		"body": "not is_string(input.context.a)\ntrim_space(input.context.a) == x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a guard of another type": {
		"body": "is_number(input.context.a)\ntrim_space(input.context.a) == x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a guard of another attribute": {
		"body": "is_string(input.context.b)\ntrim_space(input.context.a) == x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a guard of another element": {
		"body": "some y in input.context.a\nis_string(y)\nsome z in input.context.a\ntrim_space(z) == x",
		"found": _no_text("trim_space", "z"),
	},
	"a guard in a comprehension beside it": {
		"body": "y := [1 | is_string(input.context.a)]\ntrim_space(input.context.a) == x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"a default of another type": {
		"body": "is_string(input.context.a)\ntrim_space(object.get(input.context, \"a\", null)) == x",
		"found": _no_text("trim_space", "object.get(…)"),
	},
	"a guard of every element under not": {
		"body": "every y in input.context.a {\nnot is_string(y)\n}\nsome z in input.context.a\ntrim_space(z) == x",
		"found": _no_text("trim_space", "z"),
	},
}

_known := {
	"a literal": {"body": "trim_space(\"A\") == \"a\"", "found": set()},
	"a template": {"body": "trim_space($\"{x}\") == \"a\"", "found": set()},
	"what a builtin gives": {"body": "y := trim_space(input.action.name)\ntrim_space(y) == x", "found": set()},
	"elements that a builtin gives": {
		"body": "y := split(input.action.name, \".\")\ntrim_space(y[0]) == x\nsome z in y\ntrim_space(z) == x\nconcat(\"\", y) == x",
		"found": set(),
	},
	"elements that are listed": {"body": "some y in [\"a\", \"b\"]\ntrim_space(y) == x", "found": set()},
	"what the shape fixes": {
		"body": "trim_space(input.subject.id) == x\ncount(input.subject.properties.scopes) == 1\ncount(input.context.arguments) == 1",
		"found": set(),
	},
	"elements of what the shape fixes": {
		"body": "some y in input.subject.properties.scopes\ntrim_space(y) == x\nconcat(\"\", input.subject.properties.roles) == x",
		"found": set(),
	},
	"the shape by a default": {
		"body": "count(object.get(input.resource.properties, \"markings\", [])) == 1",
		"found": set(),
	},
	"the shape by a path and a default": {
		"body": "count(object.get(input.subject, [\"properties\", \"scopes\"], [])) == 1",
		"found": set(),
	},
	"a key of what the shape fixes": {"body": "some y, _ in input.context.arguments\ntrim_space(y) == x", "found": set()},
	"a library": {"body": "trim_space(manifest.entry.name) == x\ntrim_space(manifest.f(x)) == x", "found": set()},
	"configuration": {"body": "trim_space(data.config.a) == x\ntrim_space(data.manifests.a) == x", "found": set()},
	"types of no consequence": {"body": "max([1, input.context.a]) == x\nis_string(input.context.a)", "found": set()},
	"what is put together": {
		"body": "count([y | y := input.context.a]) == 1\ncount({input.context.a}) == 1\ncount({\"a\": input.context.a}) == 1",
		"found": set(),
	},
	"elements that are sorted": {
		"body": "concat(\",\", sort({y | some y in input.resource.properties.markings})) == x",
		"found": set(),
	},
	"a list of objects": {"body": "object.union_n([{\"a\": 1}, {}]) == x", "found": set()},
}

# Numbers that need more than the right type.
_numbers := {
	"a divisor": {"body": "number.whole(input.context.a)\n1 % input.context.a == x", "found": {"`%` fails if `input.context.a` is zero"}},
	"a divisor of zero": {"body": "1 % 0 == x", "found": {"`%` fails if `0` is zero"}},
	"a divisor that is written out": {"body": "1 % 2 == x", "found": set()},
	"what the engines differ about anyway": {"body": "input.context.a % 2 == x", "found": set()},
	"an offset": {
		"body": "substring(\"abc\", count(x), 1) == x",
		"found": {"`count` fails if `x` is not of type array or object or set or string", "`substring` fails if `count(…)` is below zero"},
	},
	"an offset that is written out": {"body": "substring(\"abc\", 1, 1) == x", "found": set()},
}

_found(body) := fixture.messages(found) if {
	rules := concat("", ["import data.authz.lib.manifest\n\ndeny contains r if {\n", body, "\n}"])
	found := partial_builtins.findings with input as fixture.checked([fixture.concern(rules, [])])
}

test_unknown[name] if {
	some name, case in _unknown
	_found(case.body) == case.found
}

test_guarded[name] if {
	some name, case in _guarded
	_found(case.body) == case.found
}

test_unguarded[name] if {
	some name, case in _unguarded
	_found(case.body) == case.found
}

test_known[name] if {
	some name, case in _known
	_found(case.body) == case.found
}

test_numbers[name] if {
	some name, case in _numbers
	_found(case.body) == case.found
}

# Whole sets of rules, in which one rule relies on another.
_rules := {
	"in a head": {
		"rules": "deny contains trim_space(input.context.a) if x",
		"found": _no_text("trim_space", "input.context.a"),
	},
	"in a head after a guard": {
		"rules": "deny contains trim_space(input.context.a) if is_string(input.context.a)",
		"found": set(),
	},
	"an argument of a function": {"rules": "_f(x) if trim_space(x) == \"a\"", "found": _no_text("trim_space", "x")},
	"a guarded argument of a function": {"rules": "_f(x) if {\nis_string(x)\ntrim_space(x) == \"a\"\n}", "found": set()},
	"a guard of an argument around a variable of the same name": {
		"rules": "_f(x) := [trim_space(x) | some x in input.context.a] if is_string(x)",
		"found": _no_text("trim_space", "x"),
	},
	"a partial set is no text": {
		"rules": "_a contains x if x\n\ndeny contains trim_space(_a)",
		"found": _no_text("trim_space", "_a"),
	},
	"the guard of another body": {
		"rules": "_f(x) := 1 if {\nis_string(x)\nx == 1\n} else := 2 if trim_space(x) == \"a\"",
		"found": _no_text("trim_space", "x"),
	},
	"a rule that holds a text": {"rules": "_a := \"a\"\n\ndeny contains trim_space(_a)", "found": set()},
	"a rule that holds an attribute": {
		"rules": "_a := input.context.a\n\ndeny contains trim_space(_a)",
		"found": _no_text("trim_space", "_a"),
	},
	"a rule that holds a guarded attribute": {
		"rules": "_a := input.context.a if is_string(input.context.a)\n\ndeny contains trim_space(_a)",
		"found": set(),
	},
	"a rule that may hold something else": {
		"rules": "default _a := null\n\n_a := \"a\" if x\n\ndeny contains trim_space(_a)",
		"found": _no_text("trim_space", "_a"),
	},
	"a rule with an else": {
		"rules": "_a := \"a\" if {\nx\n} else := input.context.a\n\ndeny contains trim_space(_a)",
		"found": _no_text("trim_space", "_a"),
	},
	"a function that gives a text": {"rules": "_f(x) := \"a\" if x\n\ndeny contains trim_space(_f(1))", "found": set()},
	"a function that gives its argument": {
		"rules": "_f(x) := x\n\ndeny contains trim_space(_f(1))",
		"found": _no_text("trim_space", "_f(…)"),
	},
	"a partial set": {"rules": "_a contains x if x\n\ndeny contains count(_a)", "found": set()},
	"elements of a partial set": {
		"rules": "_a contains x if x := trim_space(input.action.name)\n\ndeny contains concat(\"\", _a)",
		"found": set(),
	},
	"unknown elements of a partial set": {
		"rules": "_a contains input.context.a\n\ndeny contains concat(\"\", sort(_a))",
		"found": {"`concat` fails if an element of `sort(…)` is not of type string"},
	},
	"elements of a rule's list": {
		"rules": "_a := [\"a\"]\n\ndeny contains concat(\"\", _a)",
		"found": set(),
	},
	"unknown elements of a rule's list": {
		"rules": "_a := [input.context.a]\n\ndeny contains concat(\"\", _a)",
		"found": {"`concat` fails if an element of `_a` is not of type string"},
	},
}

test_rules[name] if {
	some name, case in _rules
	found := partial_builtins.findings with input as fixture.checked([fixture.concern(case.rules, [])])

	fixture.messages(found) == case.found
}

_hints := {
	"trim_space(input.context.a)": "check it first, earlier in the same body: `is_string(input.context.a)`",
	"trim_space(object.get(input.context, \"a\", \"\"))": "give it a name and check it first, in the same body: `x := object.get(…)`, `is_string(x)`",
	"count(input.context.a)": "check it first, earlier in the same body: `is_array(input.context.a)`",
	"sort(input.subject.properties.limits)": "check it first, earlier in the same body: `is_array(input.subject.properties.limits)`",
	"sort(data.directory.a)": "check it first, earlier in the same body: `is_array(data.directory.a)`",
	"concat(\"\", [x | some x in y])": "check each element with `is_string` where the elements are collected",
	"1 % 0": "write the number as a literal",
}

test_hints[element] if {
	some element, hint in _hints
	found := partial_builtins.findings with input as fixture.checked([fixture.concern($"deny contains {element}", [])])

	{finding.hint | some finding in found} == {hint}
}

test_the_hint_for_elements if {
	rules := "deny contains concat(\"\", input.context.a) if is_array(input.context.a)"
	found := partial_builtins.findings with input as fixture.checked([fixture.concern(rules, [])])

	{finding.hint | some finding in found} == {concat("", [
		"check it first, earlier in the same body: `every x in input.context.a {",
		" is_string(x) }`",
	])}
}
