"""The tools file of a scenario suite provides functions, a deployment and programs."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.stores.actions import Action
from pdp.stores.memory import MemoryActions
from pdp.workbench.scenarios.files.tools_file import ToolsFile
from pdp.workbench.scenarios.results import ScenarioResult
from tests.support.scenario_files import differing, ran

MANIFEST = """
manifest_version: "1"
tools:
  - {name: say_words, type: cli, effect_class: pure, risk_tier: low, cli: {argv: [printf, --, "%s\\n", "{words}"]},
     schema: {type: object, required: [words], properties: {words: {type: string}}}}
  - name: convert_money
    pattern: conversion
    risk_tier: low
    schema: {type: object, required: [value, target], properties: {value: {type: number},
      target: {type: object, properties: {currency: {type: string}}}}}
    result_schema: {type: number}
"""
GOVERNANCE = "{actions: {}, programs: {printf: {operands: true}}}"
SAY = {"tool": "say_words", "arguments": {"words": "hello"}}
CONVERT = {"tool": "convert_money", "arguments": {"value": 2, "target": {"currency": "TRY"}}}
RATES = """
from pdp import Deployment
from pdp.patterns.run import Pin
from pdp.patterns.run import pinned

readings = iter([10, 20, 30])

def convert_money(value, target):
    return value * pinned("bank").value

def deployment():
    return Deployment(sources={"bank": lambda: Pin("today", next(readings))})
"""


def scenario_run(folder: Path, *scenarios: Any, tools: str | None) -> list[ScenarioResult]:
    (folder / "manifest.yaml").write_text(MANIFEST)
    (folder / "governance.yaml").write_text(GOVERNANCE)
    settings = {} if tools is None else {"tools": "tools.py"}
    if tools is not None:
        (folder / "tools.py").write_text(tools)
    whole = {
        "manifest": "manifest.yaml",
        "governance": "governance.yaml",
        "session": {"claims": {"sub": "ann"}},
        **settings,
        "scenarios": scenarios,
    }
    file = folder / "scenarios.json"
    file.write_text(json.dumps(whole))
    return ran(file)


@pytest.mark.parametrize(
    ("tools", "result"),
    [
        pytest.param(None, None, id="no tools file: a stand-in that returns null"),
        pytest.param("", "hello\n", id="a tools file: the program"),
        pytest.param("def say_words(words): return words + '!'", "hello!", id="a function: instead of the program"),
    ],
)
def test_program_of_a_tool_runs_only_with_a_tools_file(tools: str | None, result: Any, tmp_path: Path) -> None:
    expect = {"executed": True, "failure": None, "result": result}

    outcome = scenario_run(tmp_path, {"name": "it", "propose": SAY, "expect": expect}, tools=tools)[0]

    assert (differing(outcome), outcome.error, outcome.log) == ([], None, ())


def test_scenario_field_returns_replaces_the_program_of_a_tool(tmp_path: Path) -> None:
    stated = {"name": "it", "propose": SAY, "returns": "mine", "expect": {"executed": True, "result": "mine"}}

    assert differing(scenario_run(tmp_path, stated, tools="")[0]) == []


def test_tools_file_creates_a_new_deployment_for_each_scenario(tmp_path: Path) -> None:
    steps = [
        {"propose": CONVERT, "expect": {"failure": None, "result": 20}},
        {"propose": CONVERT, "session": {"run_id": "other"}, "expect": {"result": 40}},
        {"propose": CONVERT, "expect": {"result": 20}},
    ]

    first, second = scenario_run(
        tmp_path,
        {"name": "first", "steps": steps},
        {"name": "second", "propose": CONVERT, "expect": {"result": 20}},
        tools=RATES,
    )

    assert (differing(first), differing(second)) == ([], [])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "def deployment():\n    return {}",
            "tools.py: deployment() must return a Deployment",
            "from pdp import Deployment",
        ),
        ("def deployment():\n    return 1 / 0", "tools.py:2: ZeroDivisionError: division by zero", None),
        (
            "say_words = 5",
            "tools.py: the tool `say_words` must be a function, not int",
            None,
        ),
    ],
)
def test_invalid_tools_file_is_an_error(text: str, message: str, hint: str | None, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(text)

    with pytest.raises(UsageError) as caught:
        ToolsFile(tmp_path / "tools.py").read(["say_words"])

    assert (caught.value.message, caught.value.hint) == (f"{tmp_path}/{message}", hint)


def stage(actions: MemoryActions, key: str | None, payload: str = "sha256:1") -> Any:
    action = Action.staged(
        kind="send", target="mail", payload_digest=payload, decision_id="d", idempotency_key=key, now=0.0
    )
    return actions.stage(action, "ann")


def test_staged_actions_are_numbered_in_order() -> None:
    actions = MemoryActions(ids="action-{}".format)

    staged = [stage(actions, key) for key in ("a", "b", "a", None)]

    assert [action.id for action in staged] == ["action-1", "action-2", "action-1", "action-3"]
    assert staged[2] == staged[0] == actions.get("action-1")
    assert actions.get("action-4") is None
    assert [action.id for action in actions.list()] == ["action-1", "action-2", "action-3"]
