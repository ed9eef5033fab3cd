"""What observers are told of a run, and that they harm nobody."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pdp.errors import UsageError
from pdp.execution.events import Observers, RunIdentity, ToolEvent
from pdp.execution.failures import ToolArgumentError, failure_of
from pdp.execution.run import cut_short
from pdp.proposal import Execution

IDENTITY = RunIdentity("call-1", request_id="req-1", tool_call_id="toolu-1", step_name="pay")
ARGUMENTS = {"amount": 5, "pin": "12-34", "lines": [{"text": "a"}]}
DATA = {
    "call_id": "call-1",
    "request_id": "req-1",
    "tool_call_id": "toolu-1",
    "step_name": "pay",
    "tool": "send_wire",
    "arguments": {"amount": 5, "pin": "***", "lines": [{"text": "a"}]},
}


def stripped(event: ToolEvent) -> dict[str, Any]:
    """The event as JSON, without what differs from run to run; those are checked here."""
    shown = event.as_json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown.pop("timestamp"))
    if "duration" in shown:
        assert 0 <= shown["duration"] < 60
        shown["duration"] = "some"
    return shown


def test_the_events_of_a_run() -> None:
    first: list[ToolEvent] = []
    second: list[ToolEvent] = []
    run = Observers([first.append, second.append]).watch(IDENTITY, "send_wire", ARGUMENTS, ["pin"])

    run.started()
    run.ended(Execution(result="secret", attempts=2))

    assert [stripped(event) for event in first] == [
        {"layer": "tool", "action": "execute_start", "data": DATA},
        {"layer": "tool", "action": "execute_end", "data": {**DATA, "attempts": 2}, "duration": "some"},
    ]
    assert [(event.action, event.data) for event in second] == [(event.action, event.data) for event in first]


def test_a_failure_is_told_as_the_model_is_told() -> None:
    seen: list[ToolEvent] = []
    run = Observers([seen.append]).watch(IDENTITY, "send_wire", ARGUMENTS, ["pin"])

    run.started()
    run.ended(Execution(failure=failure_of(ToolArgumentError("pin", "12-34 is wrong"), ["12-34"])))

    assert stripped(seen[1]) == {
        "layer": "tool", "action": "execute_end", "data": {**DATA, "attempts": 1}, "duration": "some",
        "error": "TOOL_EXECUTION_FAILED: argument pin: *** is wrong",
    }  # fmt: skip


@pytest.mark.parametrize("began", [False, True])
def test_a_cancelled_run(began: bool) -> None:
    """Tool layer document: a tool whose caller was cancelled before is not run, and that is an event as well."""
    seen: list[ToolEvent] = []
    run = Observers([seen.append]).watch(IDENTITY, "send_wire", ARGUMENTS, ["pin"])

    if began:
        run.started()
    run.cancelled(cut_short().failure if began else None)

    expected: dict[str, Any] = {"layer": "tool", "action": "execute_cancelled", "data": DATA}
    if began:
        expected["duration"] = "some"
        expected["error"] = "TOOL_EXECUTION_FAILED: the caller was cancelled or interrupted while the tool ran"
    assert [stripped(event) for event in seen[int(began) :]] == [expected]
    assert len(seen) == 1 + began


def test_a_run_begins_once_and_ends_once() -> None:
    seen: list[str] = []
    run = Observers([lambda event: seen.append(event.action)]).watch(IDENTITY, "send_wire", {})

    run.started()
    run.started()
    run.cancelled()
    run.ended(Execution())
    run.cancelled()
    run.started()

    assert seen == ["execute_start", "execute_cancelled"]


def test_an_observer_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def failing(event: ToolEvent) -> None:
        raise LookupError("not today")

    run = Observers([failing, lambda event: seen.append(event.action)]).watch(IDENTITY, "send_wire", {})
    run.started()
    run.ended(Execution())

    assert seen == ["execute_start", "execute_end"]
    assert [record.getMessage() for record in caplog.records] == [
        "an observer failed at execute_start of tool send_wire",
        "an observer failed at execute_end of tool send_wire",
    ]


def test_what_an_observer_does_to_its_event_is_its_own_affair() -> None:
    arguments = {"lines": [{"text": "a"}]}
    seen: list[Any] = []

    def spoiling(event: ToolEvent) -> None:
        event.data["arguments"]["lines"][0]["text"] = "spoilt"
        event.data.clear()

    run = Observers([spoiling, lambda event: seen.append(event.data["arguments"])]).watch(IDENTITY, "t", arguments)
    run.started()
    run.ended(Execution())

    assert seen == [{"lines": [{"text": "a"}]}] * 2
    assert arguments == {"lines": [{"text": "a"}]}


async def asynchronous(event: ToolEvent) -> None:
    raise AssertionError


@pytest.mark.parametrize("observer", [asynchronous, "print", None])
def test_only_plain_functions_observe(observer: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Observers([observer])

    assert str(caught.value) == (
        f"observer {observer!r:.80} is not a plain function (give a function that takes one event)"
    )
