"""Inputs of tools: the config cascade, configurable, state, default; the state that tools write, turns, and prompts."""

from typing import Any

import pytest

from pdp.contract.inputs import Config, ConfigError, StateEffectError, StateFields, state_after
from pdp.contract.registry.tool_contract import ToolConfigParam, plain_object
from pdp.errors import UsageError
from pdp.manifest.model import ConfigParameter, StateEffect

MODE = ConfigParameter(key="mode", default=" Fast ", normalize=("strip", "lower", "empty_to_null"))


@pytest.mark.parametrize(
    ("configurable", "state", "value"),
    [
        pytest.param({"mode": "SLOW"}, {"mode": "medium"}, "slow", id="configurable first"),
        pytest.param({}, {"mode": " Medium"}, "medium", id="then state"),
        pytest.param({}, {}, "fast", id="then the default, normalised too"),
        pytest.param({"mode": None}, {"mode": "medium"}, "medium", id="null is not given"),
        pytest.param({"mode": "  "}, {"mode": "medium"}, "medium", id="what becomes null is not given"),
        pytest.param({"mode": ""}, {"mode": " "}, "fast", id="neither is given"),
        pytest.param({"mode": False}, {"mode": "medium"}, False, id="false is given"),
        pytest.param({"mode": 0}, {}, 0, id="zero is given"),
        pytest.param({"mode": ["A"]}, {}, ["A"], id="only texts are normalised"),
    ],
)
def test_the_cascade(configurable: dict[str, Any], state: dict[str, Any], value: Any) -> None:
    assert dict(Config([MODE]).resolve(configurable, state)) == {"mode": value}


def test_what_is_not_declared_comes_from_configurable_alone_and_without_a_default_is_null() -> None:
    assert dict(Config([ConfigParameter(key="k")]).resolve({"a": 1}, {"b": 2})) == {"a": 1, "k": None}


def test_normalizers_in_python() -> None:
    config = Config([ToolConfigParam("ids", "a,b", lambda text: text.split(",")), ToolConfigParam("n", 3)])

    assert dict(config.resolve({"n": 4}, {"ids": "c"})) == {"ids": ["c"], "n": 4}
    assert dict(config.resolve({}, {})) == {"ids": ["a", "b"], "n": 3}
    with pytest.raises(ConfigError, match=r"^config n: the normalizer raised ValueError$"):
        Config([ToolConfigParam("n", None, int)]).resolve({"n": "seven"}, {})
    with pytest.raises(ConfigError, match=r"^config n: the normalizer's result is not JSON: value: set is not a type"):
        Config([ToolConfigParam("n", [1], set)])


def test_nobody_can_change_what_another_call_gets() -> None:
    config = Config([ConfigParameter(key="sources", default=["a"])])
    given_to_one = config.resolve({}, {})
    given_to_one["sources"].append("b")

    assert config.resolve({}, {})["sources"] == ["a"]
    with pytest.raises(TypeError):
        given_to_one["sources"] = []  # type: ignore[index]


def effect(merge: str = "replace", type_: str = "object", **fields: Any) -> StateEffect:
    return StateEffect.model_validate({"key": "k", "merge": merge, "type": type_, **fields})


@pytest.mark.parametrize(
    ("declared", "before", "result", "after"),
    [
        pytest.param(effect(), {"k": {"a": 1}}, {"k": {"b": 2}}, {"k": {"b": 2}}, id="replace"),
        pytest.param(effect("append", "array"), {"k": [1]}, {"k": [2, 3]}, {"k": [1, 2, 3]}, id="append a list"),
        pytest.param(effect("append", "array"), {}, {"k": [2]}, {"k": [2]}, id="append to nothing"),
        pytest.param(effect("append", "string"), {"k": ["a"]}, {"k": "b"}, {"k": ["a", "b"]}, id="append one item"),
        pytest.param(effect("append", "array"), {"k": None}, {"k": [1]}, {"k": [1]}, id="append to null"),
        pytest.param(effect("merge_dict"), {"k": {"a": 1, "b": 1}}, {"k": {"b": 2}}, {"k": {"a": 1, "b": 2}},
            id="merge_dict"),
        pytest.param(effect("merge_dict"), {}, {"k": {"b": 2}}, {"k": {"b": 2}}, id="merge_dict with nothing"),
        pytest.param(effect(), {"k": {"a": 1}}, {"other": 1}, {"k": {"a": 1}}, id="absent in the result"),
        pytest.param(effect(), {"k": {"a": 1}}, {"k": None}, {"k": {"a": 1}}, id="null in the result"),
        pytest.param(effect(), {"k": {"a": 1}}, "text", {"k": {"a": 1}}, id="a result that is no object"),
        pytest.param(effect(type_="integer"), {}, {"k": 2.0}, {"k": 2}, id="an integral float is an integer"),
        pytest.param(effect(type_="boolean"), {"x": 1}, {"k": False}, {"x": 1, "k": False}, id="what is beside stays"),
    ],
)  # fmt: skip
def test_merging(declared: StateEffect, before: Any, result: Any, after: Any) -> None:
    unchanged = plain_object(before)

    assert state_after(before, [declared], result) == after
    assert before == unchanged


@pytest.mark.parametrize(
    ("declared", "before", "result", "message"),
    [
        (effect(), {}, {"k": [1]}, "state effect `k`: the result has list, declared is object"),
        (effect(type_="integer"), {}, {"k": 1.5}, "state effect `k`: the result has float, declared is integer"),
        (effect(type_="number"), {}, {"k": True}, "state effect `k`: the result has bool, declared is number"),
        (effect(type_="boolean"), {}, {"k": 1}, "state effect `k`: the result has int, declared is boolean"),
        (effect("append", "array"), {"k": "a"}, {"k": [1]}, "state effect `k`: append to what is str in the state"),
        (effect("merge_dict"), {"k": [1]}, {"k": {}}, "state effect `k`: merge_dict to what is list in the state"),
        (effect(type_="number"), {}, {"k": float("nan")}, "state effect: result: k: nan is not a number of JSON"),
    ],
)
def test_what_cannot_be_merged_changes_nothing(declared: StateEffect, before: Any, result: Any, message: str) -> None:
    other = StateEffect(key="other", type="string")
    with pytest.raises(StateEffectError) as caught:
        state_after(before, [other, declared], {**result, "other": "x"})

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "state is list, not an object (hand in names with values)"),
        ({"a": {1}}, "state: a: set is not a type of JSON (it is made of plain JSON)"),
    ],
)
def test_what_is_no_state(value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        state_after(value, [], {})

    assert str(caught.value) == message


def fields(**effects: Any) -> StateFields:
    return StateFields({tool: [effect(**stated) for stated in declared] for tool, declared in effects.items()})


def test_a_turn_clears_what_tools_write_and_do_not_preserve() -> None:
    state_fields = fields(
        a=[{"key": "kept", "preserve_across_turns": True}, {"key": "cleared"}], b=[{"key": "cleared"}]
    )

    assert state_fields.at_turn_start({"kept": 1, "cleared": 2, "of the application": 3}) == {
        "kept": 1, "of the application": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ({"a": [{"key": "k"}], "b": [{"key": "k", "preserve_across_turns": True}]},
         "state field `k`: a and b disagree on preserve_across_turns (state the same in both)"),
        ({"a": [{"prompt_template_var": "V"}], "b": [{"key": "other", "prompt_template_var": "V"}]},
         "prompt variable `V`: a puts `k` there, and b `other` (give one of them another name)"),
    ],
)  # fmt: skip
def test_tools_agree_on_the_state(effects: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fields(**effects)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"), ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'), ([], "[]"), (0, "0"),
        (None, ""), ("absent", ""), ("{{OTHER}} {{V}}", "{{OTHER}} {{V}}"), (r"\1 \g<0>", r"\1 \g<0>"),
    ],
)  # fmt: skip
def test_what_a_prompt_shows_of_a_field(value: Any, shown: str) -> None:
    state_fields = fields(a=[{"prompt_template_var": "V"}, {"key": "secret", "prompt_template_var": "OTHER"}])
    state = {} if value == "absent" else {"k": value, "secret": "s"}

    assert state_fields.render_prompt("<{{V}}> <{{ V }}> {{W}} {v}", state) == f"<{shown}> <{shown}> {{{{W}}}} {{v}}"
