"""Whether a tool can run right now, and why not: asked anew whenever tools are listed.

Source: tool layer document, "Available". A call that the model made already is refused for what the tool needs and is
not there (TOOL_UNAVAILABLE); its own check and its circuit are not asked again, and it is tried.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.registry.handed_in import end_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pdp.manifest.model import Tool

_log = logging.getLogger("pdp.contract")

FAILURES: Final = 5
"""Failures in a row that open a tool's circuit, unless told otherwise."""

PAUSE: Final = 30.0
"""Seconds that a circuit stays open, unless told otherwise."""

_BINARY: Final = "binary:"
_VARIABLE: Final = "env:"
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """Whether one tool can run. `type` is `python` or `cli`; `reason` says why it cannot, and is empty when it can."""

    name: str
    type: str
    description: str
    available: bool
    reason: str


class ToolCircuit:
    """Open after `failures` runs in a row have failed, for `pause` seconds; then the next run decides. Thread-safe.

    Args:
        failures: at least 1.
        pause: seconds.
        clock: tells the time in seconds.
    """

    def __init__(
        self, *, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._closes = 0.0

    def note(self, *, failed: bool) -> None:
        """Note how a run of the tool ended."""
        with self._lock:
            self._failed = self._failed + 1 if failed else 0
            if self._failed >= self._limit:
                self._closes = self._clock() + self._pause

    def why_open(self) -> str:
        """Return why the tool is not to be tried now; empty when it may be."""
        with self._lock:
            if self._failed < self._limit or self._clock() >= self._closes:
                return ""
            return f"failed {self._failed} times in a row"


def why_unavailable(entry: Tool, capabilities: Collection[str], probe: Callable[[], Any] | None) -> str:
    """Return why a tool cannot run right now; empty when it can.

    Asked are, in this order: the program of a tool of type `cli`; what `safety.requires` names, `binary:NAME` and
    `env:NAME` on this machine, everything else among what the deployment grants; the tool's own `probe`.

    Args:
        entry: the tool's entry.
        capabilities: what the deployment grants, such as `network`.
        probe: returns true or false, or `(available, reason)`; one that raises or returns anything else says no.
    """
    return why_lacking(entry, capabilities) or (_why_not(entry.name, probe) if probe is not None else "")


def why_lacking(entry: Tool, capabilities: Collection[str]) -> str:
    """Return what a tool needs and is not there, without asking its own probe; empty when all of it is."""
    if entry.cli is not None and shutil.which(entry.cli.argv[0]) is None:
        return f"program {entry.cli.argv[0]} is not found"
    needs = entry.safety.requires if entry.safety else ()
    return next((why for need in needs if (why := _why_lacking(need, capabilities))), "")


def _why_lacking(need: str, capabilities: Collection[str]) -> str:
    if need.startswith(_BINARY):
        name = need.removeprefix(_BINARY)
        return "" if name and shutil.which(name) else f"program {name} is not found"
    if need.startswith(_VARIABLE):
        name = need.removeprefix(_VARIABLE)
        return "" if os.environ.get(name) else f"environment variable {name} is not set"
    return "" if need in capabilities else f"capability {need} is not granted"


def _why_not(name: str, probe: Callable[[], Any]) -> str:
    try:
        said = probe()
    except Exception as error:  # noqa: BLE001 - an application's own check may raise anything, which is a no
        _log.exception("the availability check of %s raised", name)
        return f"its availability check raised {type(error).__name__}"
    match said:
        case True | (True, _):
            return ""
        case False:
            return "not available"
        case (False, str(reason)):
            return reason[:_LONGEST] or "not available"
    end_coroutine(said)
    return f"its availability check gives {type(said).__name__}, not true or false"
