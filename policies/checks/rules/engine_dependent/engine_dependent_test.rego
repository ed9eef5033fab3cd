package checks.rules.engine_dependent_test

import data.checks.lib.fixture_test as fixture
import data.checks.rules.engine_dependent

_depends(name, shown, wanted) := {$"the result of `{name}` depends on the engine: `{shown}` is not {wanted}"}

_no_whole(name, shown) := _depends(name, shown, "a whole number")

_numbers := {
	"an attribute": {"body": "input.context.a + 1 == x", "found": _no_whole("+", "input.context.a")},
	"on the right": {"body": "1 * input.context.a == x", "found": _no_whole("*", "input.context.a")},
	"a decimal": {"body": "1 + 0.1 == x", "found": _no_whole("+", "0.1")},
	"a whole number written as a decimal": {"body": "1 + 7.0 == x", "found": _no_whole("+", "7.0")},
	"written out": {"body": "1 + 2 == x", "found": set()},
	"a decimal with an exponent": {"body": "sum([1, 3]) + 5e-1 == x", "found": _no_whole("+", "5e-1")},
	"a remainder": {"body": "input.context.a % 2 == x", "found": _no_whole("%", "input.context.a")},
	"a count": {"body": "count(x) - 1 == y", "found": set()},
	"a result": {"body": "(count(x) + 1) * 2 == y", "found": set()},
	"a result within another": {"body": "(input.a + 1) * 2 == y", "found": _no_whole("+", "input.a")},
	"a variable": {"body": "y := count(x)\n\ty + 1 == z", "found": set()},
}

_sources := {
	"a rule": {"body": "_two + 1 == z", "found": set()},
	"a rule with a decimal": {"body": "_half + 1 == z", "found": _no_whole("+", "_half")},
	"an integer by the schema": {"body": "input.context.arguments.n + 1 == z", "found": set()},
	"an item by the schema": {"body": "some n in input.context.arguments.ns\n\tn + 1 == z", "found": set()},
	"a longer name": {"body": "input.context.arguments.nn + 1 == z", "found": _no_whole("+", "input.context.arguments.nn")},
	"a guard": {"body": "number.whole(input.a)\n\tinput.a + 1 == z", "found": set()},
	"a guard for numbers": {"body": "is_number(input.a)\n\tinput.a + 1 == z", "found": _no_whole("+", "input.a")},
	"what a library calculates": {"body": "number.sum([x]) + 1 == z", "found": _no_whole("+", "number.sum(…)")},
	"no distance": {"body": "abs(input.a) == z", "found": _no_whole("abs", "input.a")},
	"an offset": {"body": "substring(x, 1.0, 2) == z", "found": _no_whole("substring", "1.0")},
}

_collections := {
	"sets": {"body": "{1, 2} - {input.a} == z", "found": set()},
	"a set without what may be a number": {
		"body": "{1} - input.a == z",
		"found": _depends("-", "input.a", "a whole number or set"),
	},
	"a sum": {"body": "sum([x | some x in input.a]) == z", "found": _depends("sum", "a comprehension", "a list of whole numbers")},
	"a sum of counts": {"body": "sum([n | some x in input.a; n := count(x)]) == z", "found": set()},
	"a sum of a rule's set": {"body": "sum(_counts) == z", "found": set()},
	"a sum of a rule's set with an attribute": {
		"body": "sum(_amounts) == z",
		"found": _depends("sum", "_amounts", "a list of whole numbers"),
	},
	"a product of decimals": {"body": "product([2, 0.5]) == z", "found": _depends("product", "a list", "a list of whole numbers")},
}

_others := {
	"a set is joined": {"body": "concat(\",\", {\"a\", input.a}) == z", "found": _depends("concat", "a set", "a list")},
	"a sorted set is joined": {"body": "concat(\",\", sort({\"a\", input.a})) == z", "found": set()},
	"an empty text may be looked for": {
		"body": "indexof(x, input.a) == 1",
		"found": _depends("indexof", "input.a", "a literal text"),
	},
	"no text is looked for": {"body": "indexof(x, \"\") == 1", "found": _depends("indexof", "\"\"", "a literal text")},
	"a text is looked for": {"body": "indexof(x, \"@\") == 1", "found": set()},
	"small letters": {"body": "lower(input.a) == z", "found": _depends("lower", "input.a", "a text of ASCII")},
	"the library's small letters": {"body": "text.lowercase(input.a) == z", "found": set()},
	"a number of a text": {"body": "to_number(input.a) == z", "found": _depends("to_number", "input.a", "a text of digits")},
}

_template(shown) := {$"the text of this template depends on the engine: `{shown}` is not a text or whole number"}

_templates := {
	"an attribute": {"body": `$"{input.context.a}" == z`, "found": _template("input.context.a")},
	"a call": {"body": `$"{max(x)}" == z`, "found": _template("max(…)")},
	"a text of the request": {"body": `$"{input.action.name}: {count(x)} of {true}" == z`, "found": set()},
	"a decimal": {"body": `$"{0.1}" == z`, "found": _template("0.1")},
	"a guard": {"body": "is_string(input.a)\n\t$\"{input.a}\" == z", "found": set()},
	"in a comprehension": {"body": `y := [$"{x}" | some x in input.a; is_string(x)]`, "found": set()},
}

_messages(body, known) := fixture.messages(found) if {
	rules := concat("", ["import data.authz.lib.number\n\n_two := 2\n\n_half := 0.5\n\n_counts contains count(x) if some x in input.a\n\n_amounts contains x if some x in input.a\n\ndeny contains r if {\n\t", body, "\n}"])
	modules := fixture.checked([fixture.concern(rules, [])])
	found := engine_dependent.findings with input as object.union(modules, {"integers": known})
}

_integers := ["input.context.arguments.n", "input.context.arguments.ns.*"]

test_numbers[name] if {
	some name, case in _numbers
	_messages(case.body, _integers) == case.found
}

test_sources[name] if {
	some name, case in _sources
	_messages(case.body, _integers) == case.found
}

test_collections[name] if {
	some name, case in _collections
	_messages(case.body, _integers) == case.found
}

test_others[name] if {
	some name, case in _others
	_messages(case.body, _integers) == case.found
}

test_templates[name] if {
	some name, case in _templates
	_messages(case.body, _integers) == case.found
}

test_without_a_manifest_arguments_are_passed_over if {
	_messages("input.context.arguments.n + 1 == x", ["input.context.arguments"]) == set()
	_messages("input.context.a + 1 == x", ["input.context.arguments"]) == _no_whole("+", "input.context.a")
}
