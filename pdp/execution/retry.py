"""Trying again what failed: only what does no harm twice, with pauses that grow and vary.

Source: tool layer document ("idempotent: safe to retry automatically; otherwise the loop reports a failure and lets the
caller decide"); tool pattern library, 9.2 (effect classes).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from pdp.execution.failures import ToolArgumentError, ToolResultError
from pdp.proposal import FailureCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pdp.manifest.model import DeclaredTool
    from pdp.proposal import Execution

FIRST_PAUSE: Final = 0.1
"""The first pause is a random part of this many seconds; each later one of twice as many as the one before."""

LONGEST_PAUSE: Final = 5.0
"""Seconds that a pause takes at most."""

_FINAL: Final = (ToolArgumentError, ToolResultError)


def attempts(entry: DeclaredTool) -> int:
    """Return how often a tool may be tried: once, and its `retries` more where it does no harm twice.

    That is what `safety.idempotent` states, whatever else holds. Where it states nothing, tools that only compute or
    read (effect class pure, read-internal, read-external) may be tried again, and no others. A required idempotency key
    changes nothing: it keeps a call from being made twice, but the tool itself never sees it.
    """
    idempotent = entry.safety.idempotent if entry.safety else None
    if idempotent is None:
        idempotent = not entry.has_effects
    return 1 + entry.retries if idempotent else 1


def worth_repeating(execution: Execution) -> bool:
    """Return whether another attempt could come to something else.

    Only what the tool itself raised: not a time-out (the time is used up, and it may still be running), not a tool that
    is not there, not a wrong argument or result, which would be wrong again.
    """
    failure = execution.failure
    return (
        failure is not None
        and failure.code is FailureCode.TOOL_EXECUTION_FAILED
        and failure.details.get("effect") != "unknown"
        and isinstance(execution.error, Exception)
        and not isinstance(execution.error, _FINAL)
    )


def retried(
    attempt: Callable[[float | None], Execution],
    times: int,
    timeout: float | None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Execution:
    """Try until it succeeds, `times` are over, or the next pause would not fit into the time-out.

    Args:
        attempt: makes one attempt, in as many seconds as it is given.
        times: attempts at most.
        timeout: seconds for all attempts and pauses together, or None.
        sleep: waits for some seconds.

    Returns:
        What the last attempt came to, with the number of attempts.
    """
    if times <= 1:
        return attempt(timeout)
    from tenacity import Retrying  # noqa: PLC0415 - 60 ms that most applications need not spend

    clock = _Clock(timeout)
    came: Execution = Retrying(**_policy(times, timeout), sleep=sleep)(lambda: attempt(clock.left()))
    return came._replace(attempts=clock.asked)


async def aretried(
    attempt: Callable[[float | None], Awaitable[Execution]],
    times: int,
    timeout: float | None,  # noqa: ASYNC109 - the manifest's, and reported as a failure
    *,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> Execution:
    """Do as `retried`, without blocking the event loop."""
    if times <= 1:
        return await attempt(timeout)
    from tenacity import AsyncRetrying  # noqa: PLC0415 - as above

    clock = _Clock(timeout)

    async def once() -> Execution:
        return await attempt(clock.left())

    came: Execution = await AsyncRetrying(**_policy(times, timeout), sleep=sleep or asyncio.sleep)(once)
    return came._replace(attempts=clock.asked)


class _Clock:
    """How much of the time-out is left, asked once an attempt."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout
        self.asked = 0

    def left(self) -> float | None:
        self.asked += 1
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _policy(times: int, timeout: float | None) -> dict[str, Any]:
    from tenacity import (  # noqa: PLC0415 - as above
        RetryCallState,
        retry_if_result,
        stop_after_attempt,
        stop_any,
        stop_before_delay,
        wait_random_exponential,
    )

    def last(state: RetryCallState) -> Any:
        return state.outcome.result() if state.outcome else None

    stops = [stop_after_attempt(times), *([] if timeout is None else [stop_before_delay(timeout)])]
    return {
        "retry": retry_if_result(worth_repeating),
        "wait": wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
        "stop": stop_any(*stops),
        "retry_error_callback": last,
    }
