"""The events of each call, which the application's observers receive in this process.

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
    """One event of a tool call. Each observer gets its own copy.

    `data` is `{call_id, request_id, tool_call_id, step_name, name, args}`; `call_id` is the model's id, or generated. A
    call's last event also has `attempts` and, if the result is an earlier call's, `replayed`. If the tool does not run,
    the last event is the only event. Sensitive values are `***`, as are all arguments of a tool outside the manifest.
    """

    timestamp: str  # RFC 3339 in UTC with milliseconds.
    layer: str  # Always `tool`.
    action: EventAction
    data: dict[str, Any]
    duration: float | None = None  # Seconds that the run took; None at the start and if the tool did not run.
    error: str | None = None  # `<code>: <message>` as the model sees it; None if there is a result.

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain JSON. A `duration` or `error` that is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


Observer = Callable[[ToolEvent], object]
"""Plain function that takes one event."""


class CallEvents:
    """Sends the events of one call. Call `started` and `stopped` around the run, if any, and then `ended`."""

    __slots__ = ("_began", "_data", "_duration", "_observers")

    def __init__(self, observers: Sequence[Observer], data: Mapping[str, Any]) -> None:
        self._observers = observers
        self._began: float | None = None
        self._duration: float | None = None
        self._data = data

    def started(self) -> None:
        """Report that the tool is about to run."""
        self._send("execute_start", self._data)
        self._began = time.perf_counter()

    def stopped(self) -> None:
        """Stop measuring the duration of the run, whose outcome is not known yet."""
        if self._began is not None:
            self._duration = time.perf_counter() - self._began

    def ended(self, error: str | None, execution: Execution | None, *, cancelled: bool = False) -> None:
        """Report that the call has ended, with its error, if any, and the outcome of its run, if any."""
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
            except Exception as fault:  # noqa: BLE001 - an observer must not fail the call
                _log.error("an observer failed at %s of tool %s: %s", action, data["name"], place_of(fault))
