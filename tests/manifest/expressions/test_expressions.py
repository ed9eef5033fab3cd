"""Expressions in manifest fields: what they give, what they read, and that none can run for long."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdp.manifest.expressions.cost import check_cost
from pdp.manifest.expressions.expression import (
    MISSING,
    SESSION_FIELDS,
    ExpressionError,
    compile_check,
    compile_expression,
)
from pdp.manifest.expressions.scan import scan

WHOLE_SESSION = (
    "expression reads the whole session (offered: agent, claims, config, facts, idempotency_key, plan, "
    "purpose, request_id, run_id, state, time)"
)
NO_APPROVAL = (
    "expression reads `session.approval`, which is not offered (offered: agent, claims, config, facts, "
    "idempotency_key, plan, purpose, request_id, run_id, state, time)"
)
NO_MATCHES = "expression calls method `matches`, which is not offered (check text against patterns in the JSON Schema)"
NO_NOW = (
    "expression calls function `now`, which is not offered (offered: double, duration, has, int, size, "
    "string, timestamp)"
)
NO_UPPER = (
    "expression calls method `upper`, which is not offered (offered: all, contains, endsWith, exists, "
    "exists_one, filter, map, size, startsWith)"
)
NO_PATH = (
    "macro `map` has to follow a plain path to a list, such as arguments.items (what it runs over has to "
    "be seen before it runs)"
)
NO_TIME = "timestamp('2026-07-01T00:00:00Z'): gives no JSON: value: datetime is not a type of JSON"

ARGUMENTS: dict[str, Any] = {
    "amount": 47500,
    "rate": 1.5,
    "name": "Ada",
    "list": [1, 2, 3],
    "nothing": None,
    "object": {"a b": 1, "inner": {"x": "y"}},
    "items": [{"n": 1, "tags": ["a", "b"]}, {"n": 2, "tags": ["c"]}],
}
SESSION: dict[str, Any] = {
    "claims": {"sub": "officer-123"},
    "facts": {"markings": ["pii.medium"], "sanctions_status": "clear"},
    "purpose": "payments.supplier",
}


def evaluate(text: Any, arguments: dict[str, Any] | None = None) -> Any:
    return compile_expression(text).evaluate(ARGUMENTS if arguments is None else arguments, SESSION)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("wire_payment", "wire_payment"),
        ("", ""),
        ("$$arguments.amount", "$arguments.amount"),
        (5, 5),
        (None, None),
        (True, True),
        ("$arguments.amount", 47500),
        ("$ arguments . amount ", 47500),
        ("$arguments.object['a b']", 1),
        ('$arguments["object"].inner.x', "y"),
        ("$arguments.list[1]", 2),
        ("$arguments.nothing", None),
        ("$arguments.missing", MISSING),
        ("$arguments.missing.deeper", MISSING),
        ("$arguments.list[3]", MISSING),
        ("$session.facts.markings", ["pii.medium"]),
        ("$session.plan", MISSING),
        ("$arguments", ARGUMENTS),
        (["$arguments.amount", "x"], [47500, "x"]),
        (
            {"a": "$arguments.name", "b": "$arguments.missing", "c": {"d": ["$arguments.rate"]}},
            {"a": "Ada", "c": {"d": [1.5]}},
        ),
        ("$arguments.amount * 2", 95000),
        ("$double(arguments.amount) * arguments.rate", 71250.0),
        ("$arguments.name + '-' + string(arguments.amount)", "Ada-47500"),
        ("$arguments.amount > 25000 && session.facts.sanctions_status == 'clear'", True),
        ("$has(arguments.missing) ? arguments.missing : 'none'", "none"),
        ("$size(arguments.list)", 3),
        ("$arguments.name.startsWith('A') || arguments.name.contains('zz')", True),
        ("$arguments.amount in arguments.list", False),
        ("$[arguments.amount, 1]", [47500, 1]),
        ("${'a': arguments.amount}", {"a": 47500}),
        ("$arguments.list.map(x, x * 2)", [2, 4, 6]),
        ("$arguments.list.map(x, x > 1, x * 2)", [4, 6]),
        ("$arguments.items.filter(i, i.n > 1).map(i, i.tags)", [["c"]]),
        ("$arguments.items.exists(i, i.tags.exists(t, t == 'c'))", True),
        ("$arguments.items.all(i, i.n > 1)", False),
        ("$arguments.list.exists_one(x, x == 2)", True),
        ("$arguments.list[arguments.list[0]]", 2),
        ("$int('7')", 7),
        ("$timestamp('2026-07-01T00:00:00Z') < timestamp('2026-07-02T00:00:00Z')", True),
        ("$-arguments.amount", -47500),
        ("$!arguments.list.exists(x, x == 9)", True),
        ("$3u", 3),
        ("$arguments.amount // a remark", 47500),
    ],
)
def test_values(text: Any, value: Any) -> None:
    found = evaluate(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$", "expected a value, not the end, at character 1 of the expression"),
        ("$arguments.", "expected a name after `.` at character 11 of the expression"),
        ("$arguments.amount +", "expected a value, not the end, at character 19 of the expression"),
        ("$arguments.amount as x", "expected an operator or the end, not `as`, at character 18 of the expression"),
        ("$(1", "expected `)`, not the end, at character 3 of the expression"),
        ("$1)", "expected an operator or the end, not `)`, at character 2 of the expression"),
        ("$a ? b", "expression reads `a`, which is not offered (offered here: arguments, session)"),
        ("$true ? 1", None),
        ("$1 : 2", "expected an operator or the end, not `:`, at character 3 of the expression"),
        ("$subject.id", "expression reads `subject`, which is not offered (offered here: arguments, session)"),
        ("$session.facs.x", "expression reads `session.facs`, which is not offered (did you mean `facts`?)"),
        ("$session", WHOLE_SESSION),
        ("$session['approval']", NO_APPROVAL),
        ("$session[arguments.name]", WHOLE_SESSION),
        ("$arguments.name.matches('a')", NO_MATCHES),
        ("$now()", NO_NOW),
        ("$arguments.name.upper()", NO_UPPER),
        ("$b'abc'", "expression reads `b`, which is not offered (offered here: arguments, session)"),
        ("$'''x'''", "expected an operator or the end, not `'x'`, at character 3 of the expression"),
        ("$arguments.é", "unexpected 'é' at character 11 of the expression"),
        ("$arguments.list.map(x)", "expected `,`, not `)`, at character 21 of the expression"),
        ("$arguments.list.map(session, 1)", "macro `map` needs a new name for the element, such as `x`, first"),
        ("$[1, 2].map(x, x)", NO_PATH),
        ("$arguments.items.map(i, i.tags).map(t, t.map(x, x))", NO_PATH),
        ("$x{a: 1}", "expression reads `x`, which is not offered (offered here: arguments, session)"),
        ("$" + "(" * 9 + "1" + ")" * 9, "expression nests deeper than 8 brackets (compute the value in the app)"),
        ("$1" + "+1" * 41, "expression has more than 40 operators (compute the value in the app)"),
        (
            "$" + "arguments.list.exists(x, x==1)||" * 5 + "true",
            "expression has more than 4 macros (compute the value in the app)",
        ),
        ("$arguments" + ".a" * 17, "path has more than 16 steps"),
        ("$'" + "x" * 1000 + "'", "expression is longer than 1000 characters (compute the value in the app)"),
        ({"a": ["$("]}, "expected a value, not the end, at character 2 of the expression"),
    ],
)
def test_what_is_not_admitted_is_refused_when_it_is_compiled(text: Any, message: str | None) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text)

    assert message is None or str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$arguments.amount.x", "$arguments.amount.x: x of something that is not an object"),
        ("$arguments.nothing.x", "$arguments.nothing.x: x of something that is not an object"),
        ("$arguments.name[0]", "$arguments.name[0]: [0] of something that is not a list"),
        (["$arguments.missing"], "$arguments.missing: is missing, and a list has no gaps"),
        ("$arguments.missing + 1", "$arguments.missing + 1: 'missing' is missing (guard it: has(…) ? … : …)"),
        ("$arguments.amount / 0", "arguments.amount / 0: division by zero in CEL expression"),
        ("$1.0 / 0.0", "1.0 / 0.0: gives no JSON: value: inf is not a number of JSON"),
        ("$9007199254740991 + 1", "9007199254740991 + 1: gives no JSON: value: number beyond 2^53-1"),
        ("$timestamp('2026-07-01T00:00:00Z')", NO_TIME),
        ("$duration('1h')", "duration('1h'): gives no JSON: value: timedelta is not a type of JSON"),
        ("${1: 2}", "{1: 2}: gives no JSON: value: key 1 is not a string"),
        ("$arguments.object.map(k, k)", "macro over `arguments.object`, which is an object (macros run over lists)"),
        ("$arguments.items.map(i, i.map(k, k))", "macro over `i`, which is an object (macros run over lists)"),
    ],
)
def test_a_failing_evaluation_is_an_error(text: Any, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text)

    assert str(caught.value) == message
    assert caught.value.code == "pdp.expression_failed"


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("plain", set()),
        ("$arguments.a.b[0]", {("arguments", "a", "b", 0)}),
        ("$session.facts.x == arguments.y", {("session", "facts", "x"), ("arguments", "y")}),
        ("$arguments.items.map(i, i.markings)", {("arguments", "items")}),
        ("$session.facts.l.map(x, arguments.m)", {("session", "facts", "l"), ("arguments", "m")}),
        ("$session.facts.l.filter(x, x == 1).map(y, y + arguments.z)", {("session", "facts", "l"), ("arguments", "z")}),
        ("$session.facts[arguments.key]", {("session", "facts"), ("arguments", "key")}),
        (
            "$has(arguments.h) ? [session.purpose] : [{'a': arguments.v}.a]",
            {("arguments", "h"), ("session", "purpose"), ("arguments", "v")},
        ),
        ({"a": ["$arguments.x"], "b": "$session.time"}, {("arguments", "x"), ("session", "time")}),
    ],
)
def test_what_an_expression_reads_is_known(text: Any, reads: set[tuple[str | int, ...]]) -> None:
    assert compile_expression(text).reads == reads


def test_only_plain_paths_are_paths() -> None:
    paths = ["$arguments.a", "$session.facts['x y'][0]", "$arguments"]
    others = [
        "a",
        "$$a",
        "$(arguments.a)",
        "$arguments.a + 1",
        "$-arguments.a",
        "$arguments.a[arguments.b]",
        ["$arguments.a"],
    ]

    assert [compile_expression(text).is_path for text in paths] == [True] * len(paths)
    assert [compile_expression(text).is_path for text in others] == [False] * len(others)


def test_the_session_offers_exactly_what_the_design_names() -> None:
    for name in SESSION_FIELDS:
        assert compile_expression(f"$session.{name}").reads == {("session", name)}
    assert " ".join(sorted(SESSION_FIELDS)) == (
        "agent claims config facts idempotency_key plan purpose request_id run_id state time"
    )


def test_plain_paths_do_not_import_the_cel_library() -> None:
    program = """
import sys
from pdp.manifest.expressions.expression import compile_expression

assert compile_expression("$arguments.a[0]").evaluate({"a": [7]}, {}) == 7
assert "cel" not in sys.modules
assert compile_expression("$arguments.a.size()").evaluate({"a": [7]}, {}) == 1
assert "cel" in sys.modules
"""

    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_inputs_are_never_changed() -> None:
    arguments = {"items": [{"n": 1}]}

    evaluate("$arguments.items.map(i, i.n + 1)", arguments)

    assert arguments == {"items": [{"n": 1}]}


# Each of these ran for seconds to hours, or took the process down, without a bound.
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "nested map over the same list": ("$arguments.l.map(x, arguments.l.map(y, x + y))", {"l": list(range(10_000))}),
    "map that collects the whole list": ("$arguments.l.map(x, arguments.l)", {"l": list(range(1_000))}),
    "three nested macros": (
        "$arguments.l.all(x, arguments.l.all(y, arguments.l.all(z, x + y + z >= 0)))",
        {"l": list(range(500))},
    ),
    "strings collected": ("$arguments.l.map(x, arguments.s)", {"l": list(range(1_000)), "s": "x" * 900_000}),
    "strings doubled": ("$" + "+".join(["arguments.s"] * 40), {"s": "x" * 1_000_000}),
    "membership inside of a macro": ("$arguments.l.all(x, x in arguments.l)", {"l": list(range(10_000))}),
    "objects compared": ("$arguments.l.all(x, arguments.l == arguments.l)", {"l": [{"a": n} for n in range(2_000)]}),
    "chained filters": ("$arguments.l.filter(x, true).filter(x, true).map(x, x)", {"l": list(range(10_000))}),
    "inner lists": (
        "$arguments.l.map(x, x.m.map(y, x.m.map(z, z)))",
        {"l": [{"m": list(range(200))} for _ in range(50)]},
    ),
    "index that is computed": (
        "$arguments.l.map(x, arguments.m[string(x)])",
        {"l": list(range(1_000)), "m": {"1": [0] * 9_000}},
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_run_for_long_is_refused_before_it_runs(name: str) -> None:
    text, arguments = ATTACKS[name]

    with pytest.raises(ExpressionError) as caught:
        evaluate(text, arguments)

    assert str(caught.value) == (
        "expression would cost too much on these inputs (hand in smaller lists, or nest fewer macros)"
    )


def test_reasonable_inputs_are_cheap_enough() -> None:
    orders = [{"id": str(n), "lines": [{"price": n, "name": "x" * 40} for _ in range(5)]} for n in range(100)]

    assert evaluate("$arguments.o.map(o, o.id)", {"o": orders}) == [str(n) for n in range(100)]
    assert evaluate("$arguments.o.exists(o, o.lines.exists(l, l.price > 98))", {"o": orders}) is True
    assert evaluate("$arguments.s.contains('b')", {"s": "a" * 900_000}) is False


def test_a_macro_over_what_is_missing_costs_nothing_and_fails_as_missing() -> None:
    assert evaluate("$has(arguments.zz) && arguments.zz.exists(x, x == 1)") is False
    with pytest.raises(ExpressionError, match="'zz' is missing"):
        evaluate("$arguments.zz.exists(x, x == 1)")


_WORDS = st.sampled_from(
    [
        "arguments",
        "session",
        ".facts",
        ".a",
        ".l",
        "[0]",
        "['a']",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "==",
        "&&",
        "!",
        "1",
        "1.5",
        "'s'",
        "true",
        "x",
        ".map(x,",
        ".all(x,",
        ".filter(y,",
        ".size()",
        "has(",
        "in",
        "\\",
        '"',
        " ",
        "//",
        "$",
        "0u",
        "1e400",
        "timestamp(",
        "null",
    ]
)


@given(st.lists(_WORDS, max_size=25).map("".join))
@example("arguments[")
@settings(max_examples=300, deadline=None)
def test_any_text_is_compiled_or_refused_and_evaluates_or_fails(text: str) -> None:
    inputs = {"a": 1, "l": [1, "2", {"a": []}], "s": "t"}
    try:
        compile_expression("$" + text).evaluate(inputs, {"facts": inputs})
    except ExpressionError as error:
        refused = error.message
    else:
        refused = "no"
    assert refused


@given(
    st.recursive(
        st.just("1"), lambda inner: st.tuples(inner, inner).map(lambda two: f"({two[0]}+[{two[1]}][0])"), max_leaves=8
    )
)
@settings(max_examples=100, deadline=None)
def test_within_the_bounds_the_parser_needs_little_stack(text: str) -> None:
    failed: list[BaseException] = []

    def compile_it() -> None:
        try:
            compile_expression("$" + text + "+arguments" + ".b" * 16)
        except ExpressionError:
            pass
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=compile_it)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert failed == []


def test_the_cost_is_an_upper_bound_that_grows_with_the_inputs() -> None:
    group = scan("arguments.l.map(x, x)", frozenset({"arguments"}))

    check_cost(group, {"arguments": {"l": list(range(100))}})
    with pytest.raises(ExpressionError):
        check_cost(group, {"arguments": {"l": list(range(2_000))}})


def test_many_threads_share_a_compiled_expression() -> None:
    expression = compile_expression("$arguments.n * 2 + size(arguments.l)")
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        found[number] = [expression.evaluate({"n": number, "l": [0] * number}, {}) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: [number * 3] * 50 for number in range(8)}


def test_checks_of_invariants() -> None:
    session = {"state": {"seen": ["q"]}, "config": {"mode": "fast"}, "plan": [{"tool": "a"}, {"tool": "a"}]}

    def holds(text: str, call: dict[str, Any]) -> bool:
        return compile_check(text).holds(call, session)

    assert holds("call.web_search == true", {"web_search": True})
    assert not holds("call.web_search == true", {"web_search": False})
    assert not holds("call.web_search == true", {})
    assert holds("call.web_search", {"web_search": True})
    assert holds("!(has(call.a) && has(call.b))", {"a": 1})
    assert not holds("!(has(call.a) && has(call.b))", {"a": 1, "b": 2})
    assert holds("call.q in state.seen && config.mode == 'fast'", {"q": "q"})
    assert not holds("size(plan.filter(s, s.tool == 'a')) <= 1", {})
    assert not compile_check("state.seen == [1]").holds({}, {})


def test_a_check_gives_a_boolean_and_nothing_else() -> None:
    for text, message in (
        ("call.amount", "call.amount: gives int, not true or false"),
        ("null", "null: gives NoneType, not true or false"),
    ):
        with pytest.raises(ExpressionError) as caught:
            compile_check(text).holds({"amount": 1}, {})
        assert str(caught.value) == message
    with pytest.raises(ExpressionError, match="expression reads `arguments`, which is not offered"):
        compile_check("arguments.x")
