"""The runs that are open, each of one caller, and which ones were closed.

A run that had to make room for others is not begun anew with other pins: nothing that protects is forgotten while it
goes on (pdp/patterns/run.py).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pdp.errors import StateError, UsageError
from pdp.json import canonical
from pdp.patterns.deployment import Deployment, replayed_pins
from pdp.patterns.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_RUNS: Final = 1_000
"""So many runs are open at once. Beyond them the one that was used least recently is closed."""

MOST_CLOSED: Final = 1_000_000
"""So many closed runs are known as such. Beyond them no run is opened until one has ended."""


class RunClosedError(StateError):
    """The run was closed to make room for others: what it remembered is gone, and it does not go on without."""

    code: ClassVar[str] = "run.closed"


class RunsFullError(StateError):
    """No run can be opened without forgetting which ones were closed."""

    code: ClassVar[str] = "run.too_many"


class Runs:
    """The runs that are open, each of one caller. Safe to share between threads.

    Where there are too many, the one that was used least recently is closed: no call is made in it any more, until
    its caller has ended it.

    Args:
        deployment: what holds for all of them.
        most: how many are open at once.
        most_closed: how many closed ones are known as such.
    """

    def __init__(
        self, deployment: Deployment | None = None, *, most: int = MOST_RUNS, most_closed: int = MOST_CLOSED
    ) -> None:
        self.deployment = deployment or Deployment()
        self._most = most
        self._most_closed = most_closed
        self._runs: OrderedDict[bytes, Run] = OrderedDict()
        self._closed: set[bytes] = set()
        self._lock = threading.Lock()

    def open(self, run_id: str | None, caller: str = "", *, pins: Mapping[str, Any] | None = None) -> Run:
        """Return the run of that id, a new one when it is not open; without an id one that nobody else gets.

        Args:
            run_id: the session's.
            caller: whose run it is: equal ids of two callers have nothing in common.
            pins: for a replay: what `Run.recorded_pins` gave; the sources are not read then.

        Raises:
            RunClosedError: it was closed to make room for others.
            RunsFullError: it is not open, and there is no room.
            UsageError: `pins` of another form, or for a run that has begun with others.
        """
        given = None if pins is None else replayed_pins(pins)
        if run_id is None:
            return Run(None, self.deployment, given)
        key = _key(run_id, caller)
        with self._lock:
            found = self._found(key, run_id)
        if found is None:
            # Reading sources may take a while: not under the lock. Of two that start at once, the first to be done is
            # the run for both.
            made = Run(run_id, self.deployment, given)
            with self._lock:
                found = self._found(key, run_id)
                if found is None:
                    self._make_room()
                    found = self._runs[key] = made
        if given is not None and dict(found.pins) != given:
            raise UsageError(f"run {run_id:.60} has begun with other pins", hint="replay under a run_id of its own")
        return found

    def end(self, run_id: str, caller: str = "") -> None:
        """Forget a run, open or closed, and all that it remembers. Nothing happens when there is none."""
        key = _key(run_id, caller)
        with self._lock:
            self._runs.pop(key, None)
            self._closed.discard(key)

    def _found(self, key: bytes, run_id: str) -> Run | None:
        if key in self._closed:
            raise RunClosedError(
                f"run {run_id:.60} was closed to make room for others, and what it remembered is gone",
                hint="go on under another run_id, or end it; end runs that are over",
            )
        found = self._runs.get(key)
        if found is not None:
            self._runs.move_to_end(key)
        return found

    def _make_room(self) -> None:
        while len(self._runs) >= self._most:
            if len(self._closed) >= self._most_closed:
                raise RunsFullError(f"{self._most} runs are open, and no more can be closed", hint="end what is over")
            key, _ = self._runs.popitem(last=False)
            self._closed.add(key)


# Sixteen bytes for each run that was closed, whatever ids and callers look like.
def _key(run_id: str, caller: str) -> bytes:
    return hashlib.sha256(canonical([caller, run_id])).digest()[:16]
