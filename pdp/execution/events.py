"""Observers of an application, and the events that they get when a tool begins and ends. In this process only.

Source: tool layer document, observability (the event's shape, the three actions) and correlation identifiers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pdp.clock import to_milliseconds
from pdp.contract.sensitive import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdp.proposal import Execution, Failure

_log = logging.getLogger("pdp.execution")

EventAction = Literal["execute_start", "execute_end", "execute_cancelled"]


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """One event of one run of a tool. Each observer gets a copy of its own.

    Attributes:
        timestamp: RFC 3339 in UTC with milliseconds.
        layer: always `tool`.
        action: `execute_start`, `execute_end`, or `execute_cancelled` (before it began, or while it ran).
        data: `{call_id, request_id, tool_call_id, step_name, tool, arguments}`, values of sensitive arguments being
            `***`; at the end `attempts` as well. `call_id` is the same for all events of one run.
        duration: seconds since the start; None at the start.
        error: how it failed, as the model sees it: `<code>: <message>`; None when it did not.
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


class RunEvents:
    """The events of one run: `started` if it began, and then `ended` or `cancelled`; each once.

    Args:
        observers: who gets them, in this order; one that raises is logged and harms nobody.
        data: as of `ToolEvent`, without `attempts`.
    """

    __slots__ = ("_began", "_data", "_observers")

    def __init__(self, observers: Sequence[Observer], data: Mapping[str, Any]) -> None:
        self._observers = observers
        self._began: float | None = None
        self._data = data

    def started(self) -> None:
        """Send that the tool is about to run."""
        self._send("execute_start", self._data)
        self._began = time.perf_counter()

    def ended(self, execution: Execution) -> None:
        """Send that the run has ended."""
        self._send("execute_end", {**self._data, "attempts": execution.attempts}, execution.failure)

    def cancelled(self, failure: Failure | None = None) -> None:
        """Send that the caller was cancelled or interrupted, before or during the run; `failure`: what it gets."""
        self._send("execute_cancelled", self._data, failure)

    def _send(self, action: EventAction, data: Mapping[str, Any], failure: Failure | None = None) -> None:
        duration = None if self._began is None else time.perf_counter() - self._began
        error = None if failure is None else f"{failure.code}: {failure.message}"
        timestamp = to_milliseconds(time.time())
        for observer in self._observers:
            try:
                observer(ToolEvent(timestamp, "tool", action, deepcopy(dict(data)), duration, error))
            except Exception as fault:  # noqa: BLE001 - it is the observer's own failure, not the tool's
                _log.error("an observer failed at %s of tool %s: %s", action, data["tool"], place_of(fault))
