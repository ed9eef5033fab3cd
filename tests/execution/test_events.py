"""The events of a call, beside what tests/flow/test_events.py sees of them through the enforcement point."""

from typing import Any

from pdp.execution.events import CallEvents, ToolEvent
from pdp.proposal import Execution

DATA: dict[str, Any] = {"name": "send_wire", "args": {"lines": [{"text": "a"}]}}


def test_a_run_cancelled_before_it_began_has_one_event() -> None:
    """Tool layer document: a tool whose caller was cancelled before is not run, and that is an event as well."""
    seen: list[ToolEvent] = []
    CallEvents([seen.append], DATA).ended(None, None, cancelled=True)

    [event] = seen
    assert event.as_json() == {
        "timestamp": event.timestamp, "layer": "tool", "action": "execute_cancelled", "data": DATA,
    }  # fmt: skip


def test_an_observer_that_changes_its_event_changes_no_others() -> None:
    seen: list[Any] = []

    def spoiling(event: ToolEvent) -> None:
        event.data["args"]["lines"][0]["text"] = "spoilt"
        event.data.clear()

    run = CallEvents([spoiling, lambda event: seen.append(event.data["args"])], DATA)
    run.started()
    run.stopped()
    run.ended(None, Execution())

    assert seen == [{"lines": [{"text": "a"}]}] * 2
    assert DATA == {"name": "send_wire", "args": {"lines": [{"text": "a"}]}}
