"""The config cascade: configurable, state, default."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdp.contract.config import Config, ConfigError
from pdp.contract.registry.tool_contract import ToolConfigParam
from pdp.manifest.model import ConfigParameter

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
    config = Config(params=[ToolConfigParam("ids", "a,b", lambda text: text.split(",")), ToolConfigParam("n", 3)])

    assert dict(config.resolve({"n": 4}, {"ids": "c"})) == {"ids": ["c"], "n": 4}
    assert dict(config.resolve({}, {})) == {"ids": ["a", "b"], "n": 3}


def test_a_normalizer_that_raises_is_the_deployments_fault() -> None:
    config = Config(params=[ToolConfigParam("n", None, int)])

    assert config.resolve({"n": "7"}, {})["n"] == 7
    with pytest.raises(ConfigError, match=r"^config n: the normalizer raised ValueError$"):
        config.resolve({"n": "seven"}, {})


def test_a_normalizer_gives_json() -> None:
    with pytest.raises(
        ConfigError, match=r"^config n: the normalizer's result is not JSON: value: set is not a type of JSON$"
    ):
        Config(params=[ToolConfigParam("n", [1], set)])


def test_nobody_can_change_what_another_call_gets() -> None:
    config = Config([ConfigParameter(key="sources", default=["a"])])
    given_to_one = config.resolve({}, {})
    given_to_one["sources"].append("b")

    assert config.resolve({}, {})["sources"] == ["a"]
    with pytest.raises(TypeError):
        given_to_one["sources"] = []  # type: ignore[index]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=8), st.text(max_size=8))
def test_normalising_is_idempotent(configured: str, state: str) -> None:
    once = Config([MODE]).resolve({"mode": configured}, {"mode": state})

    assert Config([MODE]).resolve(once, {}) == once
