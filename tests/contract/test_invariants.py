"""Invariants correct, prune or reject calls. Corrections are idempotent and change only declared arguments."""

import gc
import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.contract.invariants import (
    DROP_STEP,
    InvariantContext,
    InvariantResult,
    Invariants,
    ToolInvariant,
    changed_arguments,
)
from pdp.contract.registry.tool_contract import ToolContract
from pdp.errors import UsageError
from pdp.manifest.model import Invariant

NAMES = frozenset("abc")
NOTHING = InvariantContext({}, {})


def cel(**fields: Any) -> Invariant:
    return Invariant.model_validate({"id": "R", "rule": "the rule", **fields})


def python(check: Any, correct: Any = None, **fields: Any) -> ToolInvariant:
    return ToolInvariant(**{"id": "R", "rule": "the rule", "check": check, "correct": correct, **fields})


def applied(
    rules: Invariants, arguments: dict[str, Any], refusal: str | None = None, about: Any = NOTHING
) -> InvariantResult:
    return rules.applied(arguments, about, lambda _: refusal)


def of_python(*invariants: ToolInvariant) -> Invariants:
    return Invariants(of_contract=invariants, arguments=NAMES)


def fault(result: InvariantResult) -> str | None:
    return result.rejection.reason if result.rejection else None


def outcome(result: InvariantResult) -> tuple[dict[str, Any], str | None, bool, list[str]]:
    return result.arguments, fault(result), result.pruned, [str(trip) for trip in result.trips]


REJECTED = "R: the rule (rejected)"
A_IS_ONE = cel(id="ONE", check="has(call.a) && call.a == 1", correct={"set": {"a": 1}})
B_IS_A = cel(id="SAME", check="has(call.b) && call.b == call.a", correct={"set": {"b": 1}})


@pytest.mark.parametrize(
    ("rules", "arguments", "expected"),
    [
        ([A_IS_ONE, B_IS_A], {"a": 1, "b": 1}, ({"a": 1, "b": 1}, None, False, [])),
        (  # After the correction by the second rule, the call violates the first rule.
            [B_IS_A, A_IS_ONE], {"a": 2, "b": 2, "c": 3},
            ({"a": 1, "b": 1, "c": 3}, None, False, ["ONE: the rule (corrected: a)", "SAME: the rule (corrected: b)"]),
        ),
        ([cel(check="call.a == 1", correct="prune"), A_IS_ONE], {"a": 2},
         ({"a": 2}, None, True, ["R: the rule (pruned)"])),
        ([cel(check="call.a == 1"), A_IS_ONE], {"a": 2}, ({"a": 2}, "R: the rule", False, [REJECTED])),
        ([A_IS_ONE, cel(check="call.b == 1")], {"a": 2, "b": 2},
         ({"a": 1, "b": 2}, "R: the rule", False, ["ONE: the rule (corrected: a)", REJECTED])),
        ([cel(check="call.a == 1", correct={"set": {"b": 1}})], {"a": 2, "b": 1},
         ({"a": 2, "b": 1}, "R: the rule (the invariant's correction changes nothing)", False, [REJECTED])),
        (  # If a check returns no boolean, the call is rejected and not corrected.
            [cel(check="call.a", correct="prune")], {"a": 2},
            ({"a": 2}, "R: call.a: returns int, not true or false", False, [REJECTED]),
        ),
        (  # If a check reads a missing argument, the call violates the rule.
            [cel(check="call.b == 1", correct={"set": {"b": 1}})], {"a": 1},
            ({"a": 1, "b": 1}, None, False, ["R: the rule (corrected: b)"]),
        ),
    ],
)  # fmt: skip
def test_manifest_invariants_correct_prune_or_reject(rules: list[Invariant], arguments: Any, expected: Any) -> None:
    assert outcome(applied(Invariants(rules, arguments=NAMES), arguments)) == expected


def test_call_is_rejected_if_two_invariants_undo_the_corrections_of_each_other() -> None:
    up = cel(id="UP", check="call.a == 1", correct={"set": {"a": 1}})
    down = cel(id="DOWN", check="call.a == 2", correct={"set": {"a": 2}})
    result = applied(Invariants([up, down]), {"a": 3})

    assert (fault(result), len(result.trips)) == ("UP: the invariant is still violated after 16 corrections", 17)


def test_call_is_rejected_if_its_correction_violates_the_schema() -> None:
    assert outcome(applied(Invariants([A_IS_ONE]), {"a": 2}, "a is too small")) == (
        {"a": 2}, "ONE: the corrected arguments do not match the schema: a is too small", False, [("ONE: the "
                                                                                                  "rule (rejected)")],
    )  # fmt: skip


def is_one(call: dict[str, Any], state: Any, config: Any) -> bool:
    return bool(call.get("a") == 1)


def to_one(call: dict[str, Any], state: Any, config: Any) -> Any:
    return {**call, "a": 1}, True


def raising(*_: Any) -> Any:
    raise LookupError("secret")


UNDECLARED = "the corrector changes {}, which the invariant does not declare"
NO_PAIR = "the invariant's corrector must return (arguments, true or false) or DROP_STEP"


@pytest.mark.parametrize(
    ("invariant", "expected"),
    [
        pytest.param(python(is_one, to_one), ({"a": 1}, None, False, ["R: the rule (corrected: a)"]), id="corrected"),
        (python(is_one, to_one, corrects=["a"]), ({"a": 1}, None, False, ["R: the rule (corrected: a)"])),
        (python(is_one, lambda *_: DROP_STEP), ({"a": 2}, None, True, ["R: the rule (pruned)"])),
        (python(is_one, lambda *_: (DROP_STEP, True)), ({"a": 2}, None, True, ["R: the rule (pruned)"])),
        (python(is_one, lambda *_: (None, False)), ({"a": 2}, "R: the rule", False, [REJECTED])),
        *(
            pytest.param(invariant, ({"a": 2}, f"R: {why}", False, [REJECTED]), id=why)
            for invariant, why in [
                (python(is_one), "the rule"),
                (python(raising), "the invariant's check raised LookupError"),
                (python(lambda *_: 0), "the invariant's check returned int, not true or false"),
                (python(lambda *_: None), "the invariant's check returned NoneType, not true or false"),
                (python(is_one, raising), "the invariant's corrector raised LookupError"),
                (python(is_one, to_one, corrects=["b"]), UNDECLARED.format("a")),
                (python(is_one, to_one, corrects=[]), UNDECLARED.format("a")),
                (python(is_one, lambda *_: ({}, True), corrects=["b"]), UNDECLARED.format("a")),
                (python(is_one, lambda c, *_: ({**c, "a": 1, "d": 2}, True)), UNDECLARED.format("d")),
                (python(is_one, lambda c, *_: c), NO_PAIR),
                (python(is_one, lambda c, *_: [c, True]), NO_PAIR),
                (python(is_one, lambda *_: ([], True)), "the invariant's corrector returned list, not arguments"),
                (
                    python(is_one, lambda *_: ({"a": {1}}, True)),
                    "the corrector's result is not JSON: a: set is not a type of JSON",
                ),
                (python(is_one, lambda c, *_: (c, True)), "the rule (the invariant's correction changes nothing)"),
            ]
        ),
    ],
)  # fmt: skip
def test_python_invariants_correct_prune_or_reject(invariant: ToolInvariant, expected: Any) -> None:
    assert outcome(applied(of_python(invariant), {"a": 2})) == expected


def test_invariant_functions_get_copies_of_call_state_and_config() -> None:
    seen: list[Any] = []

    def modifying(call: dict[str, Any], state: Any, config: Any) -> bool:
        seen.append(json.dumps([call, state, config]))
        call["list"].append(1)
        state["list"].append(1)
        config["list"].append(1)
        return True

    arguments, about = {"list": [0]}, InvariantContext({"list": [0]}, {"list": [0]}, lambda call: [dict(call)])
    rules = of_python(python(modifying), python(modifying, id="Q"))
    result = applied(rules, arguments, about=about)

    assert result.arguments is arguments
    assert (fault(result), arguments, about.state, about.config) == (None, {"list": [0]}, {"list": [0]}, {"list": [0]})
    assert seen == ['[{"list": [0]}, {"list": [0], "plan": [{"list": [0]}]}, {"list": [0]}]'] * 2


@pytest.mark.parametrize(
    ("correcting", "message"),
    [(False, "R: the invariant's check returned coroutine, not true or false"),
     (True, f"R: {NO_PAIR}")],
)  # fmt: skip
def test_call_is_rejected_if_its_invariant_function_is_asynchronous(correcting: bool, message: str) -> None:
    async def later(call: Any, state: Any, config: Any) -> bool:
        return True

    rule = python(is_one, later) if correcting else python(later)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = applied(of_python(rule), {"a": 2})
        gc.collect()

    assert fault(result) == message
    assert warned == []


def contract(*invariants: Any) -> ToolContract:
    return ToolContract("do_it", {"a": "int"}, invariants, "Do.")


def test_validate_lists_every_violated_invariant() -> None:
    rules = contract(python(is_one), python(lambda *_: True, id="HOLDS"), python(raising, id="BAD"))

    assert rules.validate({"a": 2}, {}, {}) == ["R: the rule", "BAD: the invariant's check raised LookupError"]
    assert contract(python(is_one)).validate({"a": 1}, {}, {}) == []
    reads_plan = contract(python(lambda call, state, config: state["plan"] == [1] and config["k"] == 2))
    assert reads_plan.validate({}, {"plan": [1]}, {"k": 2}) == []


TWICE, NAMELESS = "is declared twice (rename or remove one of them)", "has no id or no rule (set both `id` and `rule`)"
NOT_CALLABLE = "has a check or a corrector that is not callable (set functions that take (call, state, config))"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: contract(python(is_one), python(is_one)), f"contract `do_it`: invariant `R` {TWICE}"),
        (lambda: contract(python(is_one, rule="")), f"contract `do_it`: invariant `R` {NAMELESS}"),
        (lambda: contract(python(is_one, id="")), f"contract `do_it`: invariant `` {NAMELESS}"),
        (lambda: contract(python("x")), f"contract `do_it`: invariant `R` {NOT_CALLABLE}"),
        (lambda: contract(python(is_one, "prune")), f"contract `do_it`: invariant `R` {NOT_CALLABLE}"),
        (
            lambda: contract().validate(None, {}, {}),  # type: ignore[arg-type]
            "call is NoneType, not an object (pass a mapping of names to values)",
        ),
        (
            lambda: contract().validate({}, 3, {}),  # type: ignore[arg-type]
            "state is int, not an object (pass a mapping of names to values)",
        ),
    ],
)
def test_faulty_contract_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()

    assert str(caught.value) == message


# Property tests with random rules over three arguments. The arguments have few values, so the rules interact often.
VALUES = st.sampled_from([0, 1, 2, None])
ARGUMENTS = st.dictionaries(st.sampled_from(sorted(NAMES)), VALUES)
CORRECTIONS = st.one_of(
    st.none(), st.just("prune"),
    st.dictionaries(st.sampled_from(sorted(NAMES)), VALUES, min_size=1).map(lambda made: {"set": made}),
)  # fmt: skip
CHECKS = st.builds(
    lambda name, value, other: (
        f"!has(call.{name}) || call.{name} == {value} || (has(call.{other}) && call.{other} == 2)"
    ),
    st.sampled_from(sorted(NAMES)), st.sampled_from(["0", "1", "null"]), st.sampled_from(sorted(NAMES)),
)  # fmt: skip
RULES = st.lists(st.tuples(CHECKS, CORRECTIONS), min_size=1, max_size=4).map(
    lambda made: [cel(id=f"R{at}", check=check, correct=correct) for at, (check, correct) in enumerate(made)]
)


@settings(max_examples=60)
@given(RULES, ARGUMENTS)
def test_correction_changes_only_declared_arguments_and_nothing_when_repeated(
    rules: list[Invariant], arguments: Any
) -> None:
    compiled = Invariants(rules, arguments=NAMES)
    before = dict(arguments)
    result = applied(compiled, arguments)
    declared = {name for rule in rules if rule.correct not in (None, "prune") for name in rule.correct.set}  # type: ignore[union-attr]

    assert arguments == before
    assert set(changed_arguments(before, result.arguments)) <= declared
    assert outcome(applied(compiled, dict(before))) == outcome(result)
    if result.rejection is None and not result.pruned:
        assert outcome(applied(compiled, result.arguments)) == (result.arguments, None, False, [])


@settings(max_examples=60)
@given(ARGUMENTS, st.sets(st.sampled_from(sorted(NAMES))), st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_python_corrector_changes_only_declared_arguments(before: Any, declared: set[str], given_back: Any) -> None:
    invariant = python(lambda call, *_: call == given_back, lambda *_: (given_back, True), corrects=sorted(declared))
    result = applied(of_python(invariant), before)

    assert set(changed_arguments(before, result.arguments)) <= declared
    assert result.arguments in (before, given_back)
    assert (result.rejection is None) == (result.arguments == given_back)
