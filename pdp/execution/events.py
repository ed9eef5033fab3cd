"""Observers of an application, and the events that they get of every call. In this process only.

Source: tool layer document, observability (the event's shape, its data `call_id`, `name`, `args`, the three actions;
all tool activity is in the events) and correlation identifiers (`request_id`, `tool_call_id`, `step_name`).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pdp.clock import to_milliseconds
from pdp.contract.sensitive import place_of
from pdp.proposal import Execution

_log = logging.getLogger("pdp.execution")

EventAction = Literal["execute_start", "execute_end", "execute_cancelled"]


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """One event of one call of a tool. Each observer gets a copy of its own.

    Attributes:
        timestamp: RFC 3339 in UTC with milliseconds.
        layer: always `tool`.
        action: `execute_start` (the tool is about to run), `execute_end`, or `execute_cancelled` (before it began, or
            while it ran). A call whose tool does not run has `execute_end` alone.
        data: `{call_id, request_id, tool_call_id, step_name, name, args}`; at the end `attempts` as well, 0 where the
            tool was not asked, and `replayed` where the result is that of an earlier call. Values of sensitive
            arguments are `***`, as are all of a tool that is not in the manifest. `call_id` is the model's id of the
            call, or else one of its own, and the same for all events of a call.
        duration: seconds that the run took; None at the start, and where nothing ran.
        error: why there is no result, as the model sees it: `<code>: <message>`; None where there is one.
    """

    timestamp: str
    layer: str
    action: EventAction
    data: dict[str, Any]
    duration: float | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain JSON; `duration` and `error` only where there is one."""
        return {name: value for name, value in asdict(self).items() if value is not None}


Observer = Callable[[ToolEvent], object]
"""A plain function that takes one event."""


class CallEvents:
    """The events of one call: `started` and `stopped` around its run, if it runs; then `ended`.

    An observer that raises is logged and harms nobody. `data` is that of `ToolEvent` but for its end.
    """

    __slots__ = ("_began", "_data", "_duration", "_observers")

    def __init__(self, observers: Sequence[Observer], data: Mapping[str, Any]) -> None:
        self._observers = observers
        self._began: float | None = None
        self._duration: float | None = None
        self._data = data

    def started(self) -> None:
        """Send that the tool is about to run."""
        self._send("execute_start", self._data)
        self._began = time.perf_counter()

    def stopped(self) -> None:
        """Measure how long the run took; what it comes to is not known yet."""
        if self._began is not None:
            self._duration = time.perf_counter() - self._began

    def ended(self, error: str | None, execution: Execution | None, *, cancelled: bool = False) -> None:
        """Send that the call has ended: why it has no result, what it came to if it was allowed."""
        if cancelled:
            self.stopped()
            return self._send("execute_cancelled", self._data, error)
        attempts = execution.attempts if execution is not None and self._began is not None else 0
        replayed = {"replayed": True} if execution is not None and execution.replayed else {}
        return self._send("execute_end", {**self._data, "attempts": attempts, **replayed}, error)

    def _send(self, action: EventAction, data: Mapping[str, Any], error: str | None = None) -> None:
        timestamp = to_milliseconds(time.time())
        for observer in self._observers:
            try:
                observer(ToolEvent(timestamp, "tool", action, deepcopy(dict(data)), self._duration, error))
            except Exception as fault:  # noqa: BLE001 - it is the observer's own failure, not the tool's
                _log.error("an observer failed at %s of tool %s: %s", action, data["name"], place_of(fault))
