"""Who wants to know when a tool begins and ends, in this process: observers and the events that they get.

Source: tool layer document, observability (the event's shape, the three actions) and correlation identifiers.
"""

from __future__ import annotations

import logging
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from pdp.clock import to_milliseconds
from pdp.errors import UsageError
from pdp.execution.failures import masked
from pdp.execution.run import is_asynchronous

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pdp.proposal import Execution, Failure

_log = logging.getLogger("pdp.execution")

Action = Literal["execute_start", "execute_end", "execute_cancelled"]


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """One thing that happened to one run of a tool. Each observer gets a copy of its own.

    Attributes:
        timestamp: RFC 3339 in UTC with milliseconds.
        layer: always `tool`.
        action: `execute_start`, `execute_end`, or `execute_cancelled` (before it began, or while it ran).
        data: `{call_id, request_id, tool_call_id, step_name, tool, arguments}`, values of sensitive arguments being
            `***`; at the end `attempts` as well. `call_id` is the same for all events of one run.
        duration: seconds since the start; None at the start.
        error: how it failed, as the model is told: `<code>: <message>`; None when it did not.
    """

    timestamp: str
    layer: str
    action: Action
    data: dict[str, Any]
    duration: float | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain JSON; `duration` and `error` only where there is one."""
        event: dict[str, Any] = {
            "timestamp": self.timestamp, "layer": self.layer, "action": self.action, "data": self.data,
        }  # fmt: skip
        if self.duration is not None:
            event["duration"] = self.duration
        if self.error is not None:
            event["error"] = self.error
        return event


class Observer(Protocol):
    """A plain function that takes one event."""

    def __call__(self, event: ToolEvent, /) -> object:
        """Take note of `event`."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What ties a run to the rest: its own id, and those of the request, of the model's tool call, and of the step."""

    call_id: str
    request_id: str | None = None
    tool_call_id: str | None = None
    step_name: str | None = None


class Observers:
    """The observers of an application, in their order. Immutable; one that raises is logged and harms nobody.

    Args:
        observers: functions that take a `ToolEvent`; they run where the tool is called, so they had better be quick.

    Raises:
        UsageError: one that cannot be called, or that is asynchronous and would never run.
    """

    __slots__ = ("_observers",)

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        for observer in self._observers:
            if not callable(observer) or is_asynchronous(observer):
                raise UsageError(
                    f"observer {observer!r:.80} is no plain function", hint="give a function that takes one event"
                )

    def __bool__(self) -> bool:
        return bool(self._observers)

    def watch(
        self, identity: RunIdentity, tool: str, arguments: Mapping[str, Any], sensitive: Collection[str] = ()
    ) -> RunEvents:
        """Return the events of one run that is about to begin; nothing is told yet.

        Args:
            identity: what it belongs to.
            tool: its name.
            arguments: those decided, plain JSON.
            sensitive: names of arguments whose values no observer gets.
        """
        if not self._observers:
            return UNOBSERVED
        return RunEvents(self._observers, identity, tool, masked(arguments, sensitive))


class RunEvents:
    """The events of one run: `started`, and then `ended` or `cancelled`. Whatever comes after an end is dropped."""

    __slots__ = ("_began", "_data", "_observers", "_over")

    def __init__(
        self,
        observers: tuple[Observer, ...],
        identity: RunIdentity,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> None:
        self._observers = observers
        self._began: float | None = None
        self._over = False
        self._data = {
            "call_id": identity.call_id,
            "request_id": identity.request_id,
            "tool_call_id": identity.tool_call_id,
            "step_name": identity.step_name,
            "tool": tool,
            "arguments": arguments,
        }

    def started(self) -> None:
        """Tell that the tool is about to run."""
        if self._began is None and not self._over:
            self._began = time.perf_counter()
            self._tell("execute_start", self._data)

    def ended(self, execution: Execution) -> None:
        """Tell that the run came to something."""
        self._finish("execute_end", {**self._data, "attempts": execution.attempts}, execution.failure)

    def cancelled(self, failure: Failure | None = None) -> None:
        """Tell that the caller was cancelled or interrupted, before or during the run; `failure`: what it then is."""
        self._finish("execute_cancelled", self._data, failure)

    def _finish(self, action: Action, data: Mapping[str, Any], failure: Failure | None) -> None:
        if self._over:
            return
        self._over = True
        duration = None if self._began is None else time.perf_counter() - self._began
        self._tell(action, data, duration, None if failure is None else f"{failure.code}: {failure.message}")

    def _tell(
        self, action: Action, data: Mapping[str, Any], duration: float | None = None, error: str | None = None
    ) -> None:
        if not self._observers:
            return
        timestamp = to_milliseconds(time.time())
        for observer in self._observers:
            try:
                observer(ToolEvent(timestamp, "tool", action, deepcopy(dict(data)), duration, error))
            except Exception:  # noqa: BLE001 - it is the observer's own failure, not the tool's
                _log.exception("an observer failed at %s of tool %s", action, data["tool"])


UNOBSERVED: Final = RunEvents((), RunIdentity(""), "", {})
"""The events of a run that nobody observes."""
