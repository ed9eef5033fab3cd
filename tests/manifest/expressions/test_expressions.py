"""Tests of expressions in manifest fields: values, errors and limits."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdp.errors import FileFaultsError
from pdp.manifest.expressions.cel import compile_check
from pdp.manifest.expressions.expression import compile_expression
from pdp.manifest.expressions.path import MISSING, SESSION_FIELDS, ExpressionError, Variables
from pdp.manifest.load import load_manifest

SESSION_OFFERS = (
    "(available: agent, claims, config, facts, idempotency_key, plan, purpose, request_id, run_id, state, time)"
)
CALLS = "(available: contains, double, duration, endsWith, int, size, startsWith, string, timestamp, and macros)"
NO_PATH = (
    "macro `map` has to follow a plain path to a list, such as arguments.items (write the path to the "
    "list before the macro)"
)
PLAIN_QUOTES = "(write it in plain quotes)"
WRITE_OUT = "(write the full path, such as arguments.a.b, for each side of a condition)"
TOO_LONG = (
    "`arguments.long` has 101 items, and an expression with a macro reads at most 100 (limit the list with `maxItems` "
    "in the schema)"
)
NO_TIME = "timestamp('2026-07-01T00:00:00Z'): result is not JSON: value: datetime is not a type of JSON"

ARGUMENTS: dict[str, Any] = {
    "amount": 47500,
    "rate": 1.5,
    "name": "Ada",
    "list": [1, 2, 3],
    "nothing": None,
    "object": {"a b": 1, "inner": {"x": "y"}},
    "items": [{"n": 1, "tags": ["a", "b"]}, {"n": 2, "tags": ["c"]}],
    "long": [0] * 101,
}
SESSION: dict[str, Any] = {
    "claims": {"sub": "officer-123"},
    "facts": {"markings": ["pii.medium"], "sanctions_status": "clear"},
    "purpose": "payments.supplier",
}


def evaluate(text: Any, arguments: Any = ARGUMENTS, session: Any = SESSION) -> Any:
    return compile_expression(text).evaluate({"arguments": arguments, "session": session})


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
        ({"a": "$arguments.name", "b": "$arguments.missing", "c": {"d": ["$arguments.rate"]}},
         {"a": "Ada", "c": {"d": [1.5]}}),
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
        ("$arguments.items.filter(i, i.n > 1)", [{"n": 2, "tags": ["c"]}]),
        ("$arguments.items.exists(i, 'c' in i.tags)", True),
        ("$arguments.items[0].tags.all(t, t != 'c')", True),
        ("$size(arguments.items) == 2 && arguments.items .// any\nexists ( i , i.n == 2 )", True),
        ("$arguments.object['a b'] + arguments.object['a b']", 2),
        ("$arguments.nothing == null || arguments.nothing.list.exists(x, x == 1)", True),
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
)  # fmt: skip
def test_expression_returns_the_expected_value(text: Any, value: Any) -> None:
    result = evaluate(text)

    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not CEL: ")
            for text in ("$arguments.amount +", "$(1", "$", "$arguments.é", "$" + "(" * 400 + "1" + ")" * 400)
        ),
        ("$a ? b : 1", "expression reads `a`, which is not available (available here: arguments, session)"),
        ("$subject.id", "expression reads `subject`, which is not available (available here: arguments, session)"),
        ("$session.facs.x", "expression reads `session.facs`, which is not available (did you mean `facts`?)"),
        ("$session.facs == 1", "expression reads `session.facs`, which is not available (did you mean `facts`?)"),
        ("$session['approval']", f"expression reads `session.approval`, which is not available {SESSION_OFFERS}"),
        *(
            (text, f"expression reads the whole session {SESSION_OFFERS}")
            for text in ("$session", "$session == 1", "$session[arguments.name]")
        ),
        ("$session['approval'] == 1", f"expression reads `session.approval`, which is not available {SESSION_OFFERS}"),
        *(
            (f"${text}", f"expression has a raw or triple-quoted string (at character {at}) {PLAIN_QUOTES}")
            for text, at in (
                ("r'\\' + arguments.name + ''", 1), ('arguments.name + br"x"', 18), ("'''x'''", 1),
                ('size("""x""")', 6),
            )
        ),
        *(
            (f"${text}", f"expression reads a member of a computed value (at character {at}) {WRITE_OUT}")
            for text, at in (
                ("arguments.items.filter(i, i.n == 1)[0].tags", 38), ("(true ? arguments : arguments).name", 30),
                ("[arguments][0].name", 14), ("{'a': arguments}['a']", 16), ("{'a': arguments}.a", 16),
            )
        ),
        ("$arguments.name.matches('a')",
         "expression calls `matches`, which is not available (use `pattern` in the JSON Schema instead)"),
        ("$now()", f"expression calls `now`, which is not available {CALLS}"),
        ("$arguments.name.upper()", f"expression calls `upper`, which is not available {CALLS}"),
        ("$arguments.list.map(session, 1)", "macro `map` needs a new element name as first argument, such as `x`"),
        *(
            (f"${path}.map(x, x)", NO_PATH)
            for path in ("[1, 2]", "arguments.o['a']", "arguments.list[arguments.n]", "string(arguments.list)")
        ),
        *(
            (text, "expression has more than one macro")
            for text in (
                "$arguments.l.all(x, true) && arguments.l.map(y, y)",
                "$arguments.l.map(x, arguments.l//\n.//\nmap//\n(x, x))",
                "$arguments.l.existsOne(x, true) || arguments.l.all(y, y)",
                "$arguments.l.map(x, x + '.map(')",
            )
        ),
        ("$arguments" + ".a" * 17, "path has more than 16 steps"),
        ("$'" + "x" * 1000 + "'", "expression is longer than 1000 characters (compute the value in the application)"),
        ({"a": ["$("]}, "not CEL: "),
    ],
)  # fmt: skip
def test_invalid_expression_does_not_compile(text: Any, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$arguments.amount.x", "arguments.amount.x: the value before `x` is not an object"),
        ("$arguments.nothing.x", "arguments.nothing.x: the value before `x` is not an object"),
        ("$arguments.name[0]", "arguments.name[0]: the value before `[0]` is not a list"),
        (["$arguments.missing"], "$arguments.missing: is missing, and a list cannot omit items"),
        (
            "$arguments.missing + 1",
            "$arguments.missing + 1: 'missing' is missing (test first whether the value exists: has(…) ? … : …)",
        ),
        ("$arguments.amount / 0", "arguments.amount / 0: division by zero in CEL expression"),
        ("$1.0 / 0.0", "1.0 / 0.0: result is not JSON: value: inf is not a number of JSON"),
        ("$9007199254740991 + 1", "9007199254740991 + 1: result is not JSON: value: number beyond 2^53-1"),
        ("$timestamp('2026-07-01T00:00:00Z')", NO_TIME),
        ("$b'abc'", "b'abc': result is not JSON: value: bytes is not a type of JSON"),
        ("$duration('1h')", "duration('1h'): result is not JSON: value: timedelta is not a type of JSON"),
        ("${1: 2}", "{1: 2}: result is not JSON: value: a key is not a string"),
        (
            "$arguments.object.map(k, k)",
            "the macro runs over `arguments.object`, which is an object (use macros only over lists)",
        ),
        ("$arguments.long.map(x, 1)", TOO_LONG),
        ("$arguments.list.all(x, x in arguments.long)", TOO_LONG),
        ("$arguments.list.all(x, x == arguments.long[100])", TOO_LONG),
    ],
)
def test_failed_evaluation_raises_an_error(text: Any, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text)

    assert str(caught.value) == message
    assert caught.value.code == "pdp.expression_failed"


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("plain", False),
        ("$$arguments.a", False),
        ("$arguments.a.b[0]", True),
        ("$session.facts.x", False),
        ("$session.facts.x == 'arguments.y'", False),
        ("$session.facts.l.map(x, arguments.m)", True),
        ({"a": ["$arguments.x"], "b": "$session.time"}, True),
        ({"a": ["$session.purpose"], "b": "$session.time"}, False),
    ],
)
def test_compiled_expression_records_whether_the_expression_reads_arguments(text: Any, reads: bool) -> None:
    assert compile_expression(text).reads_arguments == reads


def test_expressions_can_read_exactly_the_documented_session_fields() -> None:
    assert all(evaluate(f"$session.{name}", {}, {name: 1}) == 1 for name in SESSION_FIELDS)
    assert " ".join(sorted(SESSION_FIELDS)) == (
        "agent claims config facts idempotency_key plan purpose request_id run_id state time"
    )


def test_expression_gets_the_values_at_all_paths_that_the_expression_reads() -> None:
    session = {"facts": {"a": 1, "b": [0] * 1000}, "claims": {"sub": "x"}}

    assert evaluate("$has(session.facts.a) && arguments.l.all(x, x > session.facts.a)", {"l": [2]}, session) is True
    assert evaluate("$has(session.facts.z) || size(session.facts.b) > 1", {}, session) is True
    assert evaluate("$session.facts['a'] == 1 && size(session.facts) == 2", {}, session) is True


def test_evaluating_plain_paths_does_not_import_the_cel_library() -> None:
    program = """
import sys
sys.modules["cel"] = None
from pdp.manifest.expressions.expression import compile_expression

assert compile_expression("$arguments.a[0]").evaluate({"arguments": {"a": [7]}, "session": {}}) == 7
"""

    subprocess.run([sys.executable, "-c", program], check=True)


def test_expression_is_a_fault_if_the_cel_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel", None)
    text = b"""manifest_version: 2026.1.0
tools:
  - name: pay_bill
    schema: {type: object, properties: {amount: {type: number}}}
    context: {amount: $arguments.amount, double: $arguments.amount * 3}
    invariants: [{id: A, rule: r, check: call.amount < 7}]
"""
    with pytest.raises(FileFaultsError) as caught:
        load_manifest("m.yaml", manifest_text=text)

    message = "expression is more than a plain path: this needs the extra \"cel\": pip install 'tool-pdp[cel]'"
    faults = [fault for fault in caught.value.faults if not fault.warning]
    assert [(fault.place.line, fault.place.column, fault.message) for fault in faults] == [
        (5, 50, message),
        (6, 42, message),
    ]


def test_cel_macro_over_a_missing_list_fails_with_a_missing_value_error() -> None:
    assert evaluate("$has(arguments.zz) && arguments.zz.exists(x, x == 1)") is False
    with pytest.raises(ExpressionError, match="'zz' is missing"):
        evaluate("$arguments.zz.exists(x, x == 1)")


_WORDS = st.sampled_from(
    [
        "arguments", "session", ".facts", ".a", ".l", "[0]", "['a']", "[", "]", "(", ")", "{", "}", ",", ":", "?", "+",
        "-", "*", "==", "&&", "!", "1", "1.5", "'s'", "true", "x", ".map(x,", ".all(x,", ".filter(y,", ".size()",
        "has(", "in", "\\", '"', " ", "//", "$", "0u", "1e400", "timestamp(", "null",
    ]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=25).map("".join))
@example("arguments[")
@settings(max_examples=60)
def test_arbitrary_text_raises_no_error_except_expression_error(text: str) -> None:
    inputs = {"a": 1, "l": [1, "2", {"a": []}], "s": "t"}
    with suppress(ExpressionError):
        compile_expression("$" + text).evaluate({"arguments": inputs, "session": {"facts": inputs}})


def test_threads_can_share_a_compiled_expression() -> None:
    expression = compile_expression("$arguments.n * 2 + size(arguments.l)")

    def work(number: int) -> list[int]:
        return [expression.evaluate({"arguments": {"n": number, "l": [0] * number}, "session": {}}) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [[number * 3] * 50 for number in range(8)]


@pytest.mark.parametrize(
    ("text", "call", "holds"),
    [
        ("call.web_search == true", {"web_search": True}, True),
        ("call.web_search == true", {"web_search": False}, False),
        ("call.web_search", {"web_search": True}, True),
        ("!(has(call.a) && has(call.b))", {"a": 1}, True),
        ("!(has(call.a) && has(call.b))", {"a": 1, "b": 2}, False),
        ("call.q in state.seen && config.mode == 'fast'", {"q": "q"}, True),
        ("size(plan.filter(s, s.tool == 'a')) <= 1", {}, False),
    ],
)
def test_evaluation_of_an_invariant_check_returns_the_expected_result(
    text: str, call: dict[str, Any], holds: bool
) -> None:
    session = {"state": {"seen": ["q"]}, "config": {"mode": "fast"}, "plan": [{"tool": "a"}, {"tool": "a"}]}

    assert compile_check(text).evaluate({"call": call, **session}) is holds


def test_invariant_check_may_read_only_the_variables_of_invariants() -> None:
    assert ["plan" in compile_check(text).variables for text in ("size(plan) > 1", "call.plan == 'plan'")] == [
        True,
        False,
    ]
    with pytest.raises(ExpressionError, match="expression reads `arguments`, which is not available"):
        compile_check("arguments.x")


_LONG = {"a": [1] * 10_000, "m": {f"k{at}": at for at in range(5_000)}, "t": "a" * 200_000, "l": [1] * 100, "n": 1}


def test_expressions_evaluated_on_the_same_variables_share_one_work_limit() -> None:
    inputs = Variables(arguments=_LONG, session={})
    long, short = compile_expression("$size(arguments.a)"), compile_expression("$arguments.n + 1")

    assert [long.evaluate(inputs) for _ in range(3)] == [10_000] * 3
    assert [short.evaluate(inputs), inputs.work] == [2, 30_004]
    with pytest.raises(ExpressionError, match="reads and joins more than 40000 values"):
        long.evaluate(inputs)


def test_cel_library_gets_only_the_values_that_an_expression_reads() -> None:
    """The value that the expression does not read is not JSON, so the library would reject it."""
    beside = object()
    arguments = {"a": {"b": 1, "c": beside}, "l": [beside, {"b": 2, "c": beside}, beside], "c": beside}

    assert evaluate("$arguments.a.b + arguments.l[1].b", arguments) == 3
    assert evaluate("$1 + 2", arguments) == 3
    assert evaluate("$has(arguments.x) || has(arguments.a.x)", arguments) is False


def test_result_of_an_expression_has_a_maximum_size() -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate("$arguments.t + arguments.t", _LONG)

    assert (
        caught.value.message == "arguments.t + arguments.t: the result has 400002 bytes, but at most 262144 are allowed"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"size({'+'.join(['arguments.a'] * 80)})", id="joined lists"),
        pytest.param(f"size({'+'.join(['arguments.t'] * 80)})", id="joined texts"),
        pytest.param(" && ".join(["arguments.m == arguments.m"] * 20), id="compared objects"),
        pytest.param("arguments.l.all(x, arguments.m == arguments.m)", id="compared for each item"),
        pytest.param("arguments.l.map(x, size(arguments.t + arguments.t))", id="joined for each item"),
        pytest.param("arguments.l.map(x, arguments.t + 'a')", id="a long result for each item"),
    ],
)
def test_too_expensive_expression_fails_before_evaluation(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(f"${text}", _LONG)

    assert caught.value.message == f"{text}: reads and joins more than 40000 values"


@pytest.mark.parametrize(
    "text",
    [
        "size(arguments.a) + size(arguments.t)", "1 in arguments.a && arguments.a[7] == 1", 'arguments.t + "b"',
        "arguments.l.all(x, x == arguments.n)", "arguments.l.map(x, x + arguments.n + 1)", "arguments.m.k7 + 1",
    ],
)  # fmt: skip
def test_expression_may_read_a_large_value_a_few_times(text: str) -> None:
    evaluate(f"${text}", _LONG)
