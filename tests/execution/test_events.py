"""The events of a single call, except the events that tests/flow/test_events.py covers."""

from typing import Any

from pdp.execution.events import CallEvents, ToolEvent
from pdp.proposal import Execution

DATA: dict[str, Any] = {"name": "send_wire", "args": {"lines": [{"text": "a"}]}}


def test_run_cancelled_before_it_began_has_one_event() -> None:
    """If the caller is cancelled before the tool runs, the tool layer document nevertheless requires an event."""
    seen: list[ToolEvent] = []
    CallEvents([seen.append], DATA).ended(None, None, cancelled=True)

    [event] = seen
    assert event.as_json() == {
        "timestamp": event.timestamp, "layer": "tool", "action": "execute_cancelled", "data": DATA,
    }  # fmt: skip


def test_observers_get_separate_copies_of_an_event() -> None:
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
