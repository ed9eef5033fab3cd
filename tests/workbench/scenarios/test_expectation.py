"""Scenarios can expect details, messages and remedies of reasons. Mismatches and faulty expectations are reported."""

from pathlib import Path
from typing import Any

import pytest

from pdp.workbench.scenarios.running.expectation import mismatches
from tests.support.scenario_files import BIG, READ, differing, one, ran_one

EXCEEDED = {"limit": "wires", "argument": "amount", "value": 500}
APPROVAL = {
    "approvers": ["wires.approver"], "quorum": 1, "expires": "PT1H", "expires_seconds": 3600,
    "unless_within_limits": True,
}  # fmt: skip
WHOLE = EXCEEDED | {"approval": APPROVAL, "held": 100}
MESSAGE = "The amount is above what the subject may do without approval."
REMEDY = "Stay within the limit, or ask one of the approvers. A session has its limits in the claim `limits`."


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"limit": "wires"}, id="one field"),
        pytest.param(EXCEEDED, id="some fields"),
        pytest.param({"value": 500.0}, id="equal number in another notation"),
        pytest.param(WHOLE, id="all fields"),
    ],
)
def test_expected_details_match_a_reason_that_contains_them(tmp_path: Path, fields: dict[str, Any]) -> None:
    result = ran_one(tmp_path, one(propose=BIG, expect={"details": {"limits.exceeded": fields}}))

    assert result.passed
    assert result.steps[0].expected == {"details": {"limits.exceeded": fields}}
    assert result.steps[0].actual == {"details": {"limits.exceeded": [WHOLE]}}


@pytest.mark.parametrize(
    ("details", "actual"),
    [
        pytest.param({"limits.exceeded": {"value": 499}}, {"limits.exceeded": [WHOLE]}, id="another value"),
        pytest.param({"limits.exceeded": {"value": "500"}}, {"limits.exceeded": [WHOLE]}, id="another type"),
        pytest.param({"limits.exceeded": {"more": None}}, {"limits.exceeded": [WHOLE]}, id="null is not absent"),
        pytest.param(
            {"limits.exceeded": {"approval": {"quorum": 1}}}, {"limits.exceeded": [WHOLE]}, id="a part of a field"
        ),
        pytest.param({"scopes.missing": {"missing": []}}, {"scopes.missing": []}, id="no such reason"),
    ],
)
def test_mismatch_shows_the_details_of_each_reason(
    tmp_path: Path, details: dict[str, Any], actual: dict[str, Any]
) -> None:
    result = ran_one(tmp_path, one(propose=BIG, expect={"verdict": "STEP_UP", "details": details}))

    assert differing(result) == [("details", details, actual)]


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"limit": "a", "value": 1}, True),
        ({"limit": "b", "value": 2}, True),
        ({"limit": "a", "value": 2}, False),
    ],
)
def test_all_expected_details_must_be_in_one_reason(wanted: dict[str, Any], holds: bool) -> None:
    found = {"l.e": [{"limit": "a", "value": 1}, {"limit": "b", "value": 2}]}

    assert (not mismatches({"details": {"l.e": wanted}}, {"details": found})) is holds


def test_expected_message_must_match_completely(tmp_path: Path) -> None:
    whole, part = ({"limits.exceeded": text} for text in (MESSAGE, MESSAGE[:-1]))

    assert ran_one(tmp_path, one(propose=BIG, expect={"messages": whole})).passed
    assert differing(ran_one(tmp_path, one(propose=BIG, expect={"messages": part}))) == [
        ("messages", part, {"limits.exceeded": [MESSAGE]})
    ]


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"a.b": "one", "c.d": "three"}, True),
        ({"a.b": "two", "c.d": "three"}, True),
        ({"a.b": "one", "c.d": "two"}, False),
        ({"a.b": "three", "c.d": "three"}, False),
    ],
)
def test_each_expected_code_needs_a_reason_with_its_message(expected: dict[str, str], holds: bool) -> None:
    actual = {"a.b": ["one", "two"], "c.d": ["three"]}

    assert (not mismatches({"messages": expected}, {"messages": actual})) is holds
    assert (not mismatches({"remedies": expected}, {"remedies": actual})) is holds


def test_expected_remedy_must_match_completely(tmp_path: Path) -> None:
    stated = {"limits.exceeded": REMEDY}
    acceptable = {"risk.acceptable": REMEDY}

    assert ran_one(tmp_path, one(propose=BIG, expect={"remedies": stated})).passed
    assert differing(ran_one(tmp_path, one(propose=READ, expect={"remedies": acceptable}))) == [
        ("remedies", acceptable, {"risk.acceptable": [None]})
    ]


def test_rejected_call_has_no_reasons_to_match(tmp_path: Path) -> None:
    expect = {"details": {"limits.exceeded": {"limit": "wires"}}, "messages": {"limits.exceeded": MESSAGE}}
    result = ran_one(tmp_path, one(propose={"tool": "send_wire", "arguments": {}}, expect=expect))

    assert differing(result) == [
        ("details", expect["details"], {"limits.exceeded": []}),
        ("messages", expect["messages"], {"limits.exceeded": []}),
    ]


def test_expectation_details_null_fails_if_the_call_has_no_reason(tmp_path: Path) -> None:
    result = ran_one(tmp_path, one(propose=READ, expect={"verdict": "ALLOW", "details": None}))

    assert differing(result) == [("details", None, {})]


def test_details_can_be_expected_for_a_raw_request(tmp_path: Path) -> None:
    request = {
        "subject": {"type": "user", "id": "ann", "properties": {}},
        "action": {
            "name": "read_note",
            "properties": {
                "tool": "read_note", "manifest_version": "$manifest_version", "manifest_digest": "$manifest_digest",
            },
        },
        "resource": {"type": "tool", "id": "read_note", "properties": {}},
        "context": {},
    }  # fmt: skip
    expect = {"codes": ["scopes.missing"], "details": {"scopes.missing": {"missing": ["notes.read"]}}}

    assert ran_one(tmp_path, one(request=request, expect=expect)).passed
