"""Scenarios can expect `flow`, the labels of a call's arguments. Each scenario is a separate run."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pdp.workbench.scenarios.results import ScenarioResult
from tests.ledger.assistant import EXAMPLE, MAIL, READ, SESSION, invite
from tests.support.command_line import written
from tests.support.scenario_files import differing, ran

STRANGER, FIRST = "y@other.example", "/participants/0"
READING = {"propose": READ, "returns": MAIL, "expect": {"verdict": "ALLOW", "flow": {"tainted": False}}}
SAID = "The value of `participants/0` was read in the result of read_mail (call it/1), and you did not name it."


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    for name in ("manifest.yaml", "governance.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path)


def file_of(folder: Path, *scenarios: Any) -> Path:
    session = {name: value for name, value in SESSION.items() if name not in ("run_id", "request_id")}
    whole = {"manifest": "manifest.yaml", "governance": "governance.yaml", "session": session}
    return written(folder / "scenarios.json", {**whole, "scenarios": list(scenarios)})


def invited(folder: Path, expect: dict[str, Any], **fields: Any) -> ScenarioResult:
    """Run a scenario that reads a mail and invites its sender, with this expectation, and return the result."""
    return ran(
        file_of(folder, {"name": "it", "steps": [READING, {"propose": invite(STRANGER), "expect": expect, **fields}]})
    )[0]


@pytest.mark.parametrize(
    "flow",
    [
        pytest.param({"tainted": True, "untrusted": ["read_mail"], "markings": []}, id="labels of the run"),
        pytest.param({"plan": None, "anchored": False, "intended": False}, id="intent"),
        pytest.param({"arguments": {FIRST: ["untrusted"], "/title": ["model"]}}, id="sources by path"),
        pytest.param(
            {"arguments": {FIRST: {"role": "destination", "from": ["read_mail"], "home": False, "links": []}}},
            id="some of an argument",
        ),
        pytest.param({"arguments": {"/day": None, "/participants/1": None}}, id="no such argument"),
        pytest.param({"arguments": {}}, id="nothing of the arguments"),
    ],
)  # fmt: skip
def test_flow_labels_of_a_result_apply_in_the_next_step(tmp_path: Path, flow: dict[str, Any]) -> None:
    result = invited(tmp_path, {"verdict": "STEP_UP", "codes": ["flow.target_untrusted"], "flow": flow})

    assert differing(result) == []
    assert result.passed


@pytest.mark.parametrize(
    ("flow", "actual"),
    [
        pytest.param({"tainted": False}, {"tainted": True}, id="a label of the run"),
        pytest.param({"untrusted": []}, {"untrusted": ["read_mail"]}, id="a list is whole"),
        pytest.param(
            {"arguments": {FIRST: ["model", "untrusted"]}}, {"arguments": {FIRST: ["untrusted"]}},
            id="sources",
        ),
        pytest.param(
            {"arguments": {FIRST: {"sources": ["untrusted"], "from": []}}},
            {"arguments": {FIRST: {"sources": ["untrusted"], "from": ["read_mail"]}}}, id="calls",
        ),
        pytest.param(
            {"arguments": {"/day": ["model"]}}, {"arguments": {"/day": None}}, id="no such argument"
        ),
        pytest.param(
            {"arguments": {FIRST: {"rol": None}}}, {"arguments": {FIRST: {"rol": "no such field"}}}, id="no such field"
        ),
        pytest.param(
            None,
            {"tainted": True, "untrusted": ["read_mail"], "markings": [], "plan": None, "anchored": False,
             "intended": False, "arguments": {FIRST: ["untrusted"], "/title": ["model"]}}, id="null is expected",
        ),
    ],
)  # fmt: skip
def test_mismatch_of_flow_labels_shows_only_the_fields_that_the_scenario_expects(
    tmp_path: Path, flow: Any, actual: Any
) -> None:
    assert differing(invited(tmp_path, {"flow": flow})) == [("flow", flow, actual)]


def test_expected_explanation_of_flow_labels_must_match_completely(tmp_path: Path) -> None:
    complete, other = ({"flow.target_untrusted": text} for text in (SAID, SAID[:-1]))

    assert invited(tmp_path, {"explanations": complete}).passed
    assert differing(invited(tmp_path, {"explanations": other})) == [
        ("explanations", other, {"flow.target_untrusted": [SAID]})
    ]


def test_each_scenario_has_a_separate_run_without_flow_labels_of_other_scenarios(tmp_path: Path) -> None:
    clean = {"propose": invite(STRANGER), "expect": {"verdict": "ALLOW", "flow": {"tainted": False}}}
    elsewhere = {**clean, "session": {"run_id": "another"}}
    without = {**clean, "session": {"run_id": None}, "expect": {"codes": ["flow.unknown"], "flow": None}}

    results = ran(
        file_of(
            tmp_path, {"name": "one", "steps": [READING, elsewhere, without]}, {"name": "two", **clean},
            {"name": "three", **without},
        )
    )  # fmt: skip

    assert [differing(result) for result in results] == [[], [], []]
