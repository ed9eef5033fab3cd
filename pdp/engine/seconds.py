"""Seconds: those given as arguments, checked in one way, and the clock that counts them while the machine sleeps."""

from __future__ import annotations

import time
from typing import Final

from pdp.errors import UsageError

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def check_seconds(name: str, value: object, *, most: float, zero: bool = False) -> None:
    """Check that an argument is a number of seconds up to `most`, and above 0 unless `zero` is admitted.

    Raises:
        UsageError: it is not; also a text, None or a truth value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Each comparison fails for NaN.
    if not (is_number and (0 < value <= most or (zero and value == 0))):  # type: ignore[operator]
        hint = f"0 to {most:.0f}" if zero else f"above 0, at most {most:.0f}"
        raise UsageError(f"{name}: {value!r:.40} is not a number of seconds", hint=hint)


def elapsed() -> float:
    """Return seconds that never go back, with the machine's sleep where the system counts it."""
    return time.clock_gettime(_CLOCK)
