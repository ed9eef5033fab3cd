"""How many requests one token may make."""

import time
from collections import OrderedDict
from typing import Final

from pdp.service.requests import HttpError
from pdp.service.security.principal import Principal

_MOST: Final = 100_000  # tokens that are remembered; of more, who has asked least recently begins anew


class RateLimiter:
    """A token bucket for each principal, in this process: `rate` requests a second, `burst` of them at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, principal: Principal) -> None:
        """Count one request; HttpError 429 where there have been too many."""
        now = time.monotonic()
        left, since = self._buckets.get(principal.id, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        if left < 1:
            wait = f"{max(1, round((1 - left) / self._rate))}"
            raise HttpError(429, "too many requests by this token", hint="slow down", headers={"Retry-After": wait})
        self._buckets[principal.id] = (left - 1, now)
        self._buckets.move_to_end(principal.id)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
