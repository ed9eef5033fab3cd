"""A circuit breaker: an OPA that is down is not tried by every caller until each has waited for its time-out."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES: Final = 5
"""Default number of failures in a row that open the circuit."""

PAUSE: Final = 1.0
"""Default time between two trials while the circuit is open, in seconds."""


class Circuit:
    """Closed until `failures` calls in a row have failed; then open, with one trial per `pause` until one succeeds.

    Holds no state about calls under way: whoever was admitted and then cancelled owes it nothing. Safe for threads and
    tasks.

    Args:
        failures: how many failures in a row open it, at least 1.
        pause: seconds between two trials while it is open.
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
        self._next_trial = 0.0
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why the last failed call failed; empty when none has."""
        return self._reason

    def admits(self) -> bool:
        """Whether a call may be made now. While the circuit is open, True once per pause: that call is the trial."""
        if self._failed < self._limit:
            return True
        with self._lock:
            if self._failed >= self._limit and self._clock() < self._next_trial:
                return False
            self._next_trial = self._clock() + self._pause
            return True

    def succeeded(self) -> None:
        """Note that a call was answered: the circuit is closed."""
        if self._failed:
            with self._lock:
                self._failed = 0

    def failed(self, reason: str = "") -> None:
        """Note that a call failed, and why."""
        with self._lock:
            self._failed += 1
            self._reason = reason
            if self._failed >= self._limit:
                self._next_trial = self._clock() + self._pause
