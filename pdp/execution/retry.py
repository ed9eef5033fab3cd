"""Trying a failed tool again, with pauses that grow and vary. Loaded for tools that state `retries`.

Source: tool layer document ("idempotent: safe to retry automatically; otherwise the loop reports a failure and lets the
caller decide"); tool pattern library, 9.2 (effect classes).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from tenacity import (
    AsyncRetrying,
    Retrying,
    retry_if_result,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
    wait_random_exponential,
)

from pdp.execution.failures import ToolArgumentError, ToolResultError
from pdp.proposal import FailureCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pdp.proposal import Execution

FIRST_PAUSE: Final = 0.1
"""The first pause is a random part of this many seconds; each later one of twice as many as the one before."""

LONGEST_PAUSE: Final = 5.0
"""Seconds that a pause takes at most."""

_FINAL: Final = (ToolArgumentError, ToolResultError)


def worth_repeating(execution: Execution) -> bool:
    """Return whether another attempt could have another outcome.

    Only what the tool itself raised: not a time-out (the time is used up, and it may still be running), not a tool that
    is not there, not a wrong argument or result, which would be wrong again.
    """
    failure = execution.failure
    return (
        failure is not None
        and failure.code is FailureCode.TOOL_EXECUTION_FAILED
        and execution.outcome == "failed"
        and isinstance(execution.error, Exception)
        and not isinstance(execution.error, _FINAL)
    )


def retried(
    attempt: Callable[[], Execution],
    times: int,
    timeout: float | None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Execution:
    """Try until it succeeds, after `times` attempts, or until the next pause would not fit into the time-out.

    Args:
        attempt: makes one attempt.
        times: attempts at most.
        timeout: seconds for all attempts and pauses together, or None.
        sleep: waits for some seconds.

    Returns:
        The outcome of the last attempt, with the number of attempts.
    """
    retrying = Retrying(**_policy(times, timeout), sleep=sleep)
    execution: Execution = retrying(attempt)
    return execution._replace(attempts=retrying.statistics["attempt_number"])


async def aretried(
    attempt: Callable[[], Awaitable[Execution]],
    times: int,
    timeout: float | None,  # noqa: ASYNC109 - the manifest's, and reported as a failure
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Execution:
    """Async variant of `retried`."""
    retrying = AsyncRetrying(**_policy(times, timeout), sleep=sleep)
    execution: Execution = await retrying(attempt)
    return execution._replace(attempts=retrying.statistics["attempt_number"])


def _policy(times: int, timeout: float | None) -> dict[str, Any]:
    stops = [stop_after_attempt(times), *([] if timeout is None else [stop_before_delay(timeout)])]
    return {
        "retry": retry_if_result(worth_repeating),
        "wait": wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
        "stop": stop_any(*stops),
        "retry_error_callback": lambda state: state.outcome.result() if state.outcome else None,
    }
