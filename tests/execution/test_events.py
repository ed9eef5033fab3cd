"""The events of a run, beside what tests/flow/test_events.py sees of them through the enforcement point."""

from __future__ import annotations

from typing import Any

from pdp.execution.events import RunEvents, ToolEvent
from pdp.proposal import Execution

DATA: dict[str, Any] = {"tool": "send_wire", "arguments": {"lines": [{"text": "a"}]}}


def test_a_run_cancelled_before_it_began_has_one_event() -> None:
    """Tool layer document: a tool whose caller was cancelled before is not run, and that is an event as well."""
    seen: list[ToolEvent] = []
    RunEvents([seen.append], DATA).cancelled()

    [event] = seen
    assert event.as_json() == {
        "timestamp": event.timestamp, "layer": "tool", "action": "execute_cancelled", "data": DATA,
    }  # fmt: skip


def test_an_observer_that_changes_its_event_changes_no_others() -> None:
    seen: list[Any] = []

    def spoiling(event: ToolEvent) -> None:
        event.data["arguments"]["lines"][0]["text"] = "spoilt"
        event.data.clear()

    run = RunEvents([spoiling, lambda event: seen.append(event.data["arguments"])], DATA)
    run.started()
    run.ended(Execution())

    assert seen == [{"lines": [{"text": "a"}]}] * 2
    assert DATA == {"tool": "send_wire", "arguments": {"lines": [{"text": "a"}]}}
