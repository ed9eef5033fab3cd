"""How tools get their config and state, how tool results change the state, and how prompts use the state."""

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
        pytest.param({}, {}, "fast", id="then the normalised default"),
        pytest.param({"mode": None}, {"mode": "medium"}, "medium", id="null is skipped"),
        pytest.param({"mode": "  "}, {"mode": "medium"}, "medium", id="null after normalising is skipped"),
        pytest.param({"mode": ""}, {"mode": " "}, "fast", id="both are skipped"),
        pytest.param({"mode": False}, {"mode": "medium"}, False, id="false is used"),
        pytest.param({"mode": 0}, {}, 0, id="zero is used"),
        pytest.param({"mode": ["A"]}, {}, ["A"], id="only texts are normalised"),
    ],
)
def test_config_value_is_taken_from_configurable_or_else_from_state_or_the_default(
    configurable: dict[str, Any], state: dict[str, Any], value: Any
) -> None:
    assert dict(Config([MODE]).resolve(configurable, state)) == {"mode": value}


def test_undeclared_config_keys_are_not_read_from_state() -> None:
    assert dict(Config([ConfigParameter(key="k")]).resolve({"a": 1}, {"b": 2})) == {"a": 1, "k": None}


def test_python_normalizer_changes_config_values_and_its_errors_are_reported() -> None:
    config = Config([ToolConfigParam("ids", "a,b", lambda text: text.split(",")), ToolConfigParam("n", 3)])

    assert dict(config.resolve({"n": 4}, {"ids": "c"})) == {"ids": ["c"], "n": 4}
    assert dict(config.resolve({}, {})) == {"ids": ["a", "b"], "n": 3}
    with pytest.raises(ConfigError, match=r"^config n: the normalizer raised ValueError$"):
        Config([ToolConfigParam("n", None, int)]).resolve({"n": "seven"}, {})
    with pytest.raises(ConfigError, match=r"^config n: the normalizer's result is not JSON: value: set is not a type"):
        Config([ToolConfigParam("n", [1], set)])


def test_changing_the_resolved_config_of_one_call_does_not_affect_other_calls() -> None:
    config = Config([ConfigParameter(key="sources", default=["a"])])
    resolved = config.resolve({}, {})
    resolved["sources"].append("b")

    assert config.resolve({}, {})["sources"] == ["a"]
    with pytest.raises(TypeError):
        resolved["sources"] = []  # type: ignore[index]


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
        pytest.param(effect(), {"k": {"a": 1}}, "text", {"k": {"a": 1}}, id="result is not an object"),
        pytest.param(effect(type_="integer"), {}, {"k": 2.0}, {"k": 2}, id="an integral float is an integer"),
        pytest.param(effect(type_="boolean"), {"x": 1}, {"k": False}, {"x": 1, "k": False}, id="other keys stay"),
    ],
)  # fmt: skip
def test_tool_result_is_merged_into_the_state(declared: StateEffect, before: Any, result: Any, after: Any) -> None:
    unchanged = plain_object(before)

    assert state_after(before, [declared], result) == after
    assert before == unchanged


@pytest.mark.parametrize(
    ("declared", "before", "result", "message"),
    [
        (effect(), {}, {"k": [1]}, "state effect `k`: the result has list, expected object"),
        (effect(type_="integer"), {}, {"k": 1.5}, "state effect `k`: the result has float, expected integer"),
        (effect(type_="number"), {}, {"k": True}, "state effect `k`: the result has bool, expected number"),
        (effect(type_="boolean"), {}, {"k": 1}, "state effect `k`: the result has int, expected boolean"),
        (
            effect("append", "array"),
            {"k": "a"},
            {"k": [1]},
            "state effect `k`: cannot append, because the state has str",
        ),
        (
            effect("merge_dict"),
            {"k": [1]},
            {"k": {}},
            "state effect `k`: cannot merge_dict, because the state has list",
        ),
        (effect(type_="number"), {}, {"k": float("nan")}, "state effect: result: k: nan is not a number of JSON"),
    ],
)
def test_tool_result_of_the_wrong_type_is_not_merged_into_the_state(
    declared: StateEffect, before: Any, result: Any, message: str
) -> None:
    other = StateEffect(key="other", type="string")
    with pytest.raises(StateEffectError) as caught:
        state_after(before, [other, declared], {**result, "other": "x"})

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "state is list, not an object (pass a mapping of names to values)"),
        ({"a": {1}}, "state: a: set is not a type of JSON (use only plain JSON values)"),
    ],
)
def test_state_must_be_a_json_object(value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        state_after(value, [], {})

    assert str(caught.value) == message


def fields(**effects: Any) -> StateFields:
    return StateFields({tool: [effect(**stated) for stated in declared] for tool, declared in effects.items()})


def test_new_turn_clears_state_fields_that_are_not_preserved() -> None:
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
         "state field `k`: a and b disagree on preserve_across_turns (set the same value in both contracts)"),
        ({"a": [{"prompt_template_var": "V"}], "b": [{"key": "other", "prompt_template_var": "V"}]},
         "prompt variable `V`: a uses it for `k`, and b for `other` (rename one of the variables)"),
    ],
)  # fmt: skip
def test_tools_with_different_declarations_of_the_same_state_field_are_rejected(
    effects: dict[str, Any], message: str
) -> None:
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
def test_prompt_variable_is_replaced_by_the_value_of_its_state_field(value: Any, shown: str) -> None:
    state_fields = fields(a=[{"prompt_template_var": "V"}, {"key": "secret", "prompt_template_var": "OTHER"}])
    state = {} if value == "absent" else {"k": value, "secret": "s"}

    assert state_fields.render_prompt("<{{V}}> <{{ V }}> {{W}} {v}", state) == f"<{shown}> <{shown}> {{{{W}}}} {{v}}"
