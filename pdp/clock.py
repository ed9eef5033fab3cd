"""Write and check the times of requests and events: RFC 3339 in UTC, with the suffix `Z`."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

# The last second of the year 9999, which is the latest time that `datetime` can represent.
LAST_SECOND: Final = 253_402_300_799

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def to_seconds(now: float) -> str:
    """Return the time `now` (seconds since 1970) as text without milliseconds, such as `2026-07-01T10:00:00Z`."""
    return _second(int(now)) + "Z"


def to_milliseconds(now: float) -> str:
    """Return the time `now` (seconds since 1970) as text with milliseconds, such as `2026-07-01T10:00:00.250Z`."""
    now = min(max(0.0, now), LAST_SECOND)  # No event is earlier or later, but a filter may be.
    second = int(now)
    return f"{_second(second)}.{int((now - second) * 1000):03d}Z"


def is_time(text: str) -> bool:
    """Return whether `text` is a valid time without fractions of a second, such as `2026-07-01T10:00:00Z`."""
    if not _TIME.fullmatch(text):
        return False
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


# Formatting takes two microseconds, and many calls happen in the same second.
@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
