"""Running a tool: only what was decided, and whatever happens is a result or a failure with a fixed code.

Source of the codes: tool layer document, safety contract.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from pdp.proposal import Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Execution(NamedTuple):
    """What an execution came to: the tool's result, or a failure.

    `error` is what the tool raised; `started` says whether it was started at all.
    """

    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    started: bool = True


def run(function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float | None) -> Execution:
    """Call `function` with the decided arguments and wait for its result.

    Args:
        function: the tool; a coroutine function is run in an event loop of its own.
        arguments: keyword arguments, exactly as decided.
        timeout: seconds to wait, or None. A thread cannot be stopped: after a time-out the call may still have its
            effect, and the failure's details say `{"effect": "unknown"}`.
    """
    if is_asynchronous(function):
        if _loop_is_running():
            return _in_thread(lambda: asyncio.run(arun(function, arguments, timeout)), None)
        return asyncio.run(arun(function, arguments, timeout))
    if timeout is None:
        return _attempt(function, arguments)
    return _in_thread(lambda: _attempt(function, arguments), timeout)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[], Execution], timeout: float | None) -> Execution:
    done: list[Execution | BaseException] = []
    context = contextvars.copy_context()

    def attempt() -> None:
        try:
            done.append(context.run(work))
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the caller's
            done.append(error)

    thread = threading.Thread(target=attempt, name="pdp-tool", daemon=True)
    thread.start()
    thread.join(timeout)
    if not done:
        return _timed_out(timeout)
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


async def arun(function: Callable[..., Any], arguments: Mapping[str, Any], timeout: float | None) -> Execution:  # noqa: ASYNC109 - the manifest's, and reported as a failure
    """Do as `run`, without blocking the event loop: a plain function runs in a thread."""
    if is_asynchronous(function):
        try:
            async with asyncio.timeout(timeout) as deadline:
                return Execution(result=await function(**arguments))
        except TimeoutError as error:
            return _timed_out(timeout) if deadline.expired() else _failed(error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _failed(error)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
            return _failed(error)
    try:
        return await asyncio.wait_for(asyncio.to_thread(_attempt, function, arguments), timeout)
    except TimeoutError:
        return _timed_out(timeout)


def _attempt(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Execution:
    try:
        result = function(**arguments)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            return _failed(TypeError("the tool returned something that has yet to run; make it an async function"))
        return Execution(result=result)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
        return _failed(error)


def _failed(error: BaseException) -> Execution:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception may not even be able to say what it is
        message = ""
    return Execution(
        failure=Failure(
            code=FailureCode.TOOL_EXECUTION_FAILED,
            message=message or type(error).__name__,
            details={"exception": type(error).__name__},
        ),
        error=error,
    )


def cut_short() -> Execution:
    """Return what a run came to whose caller was cancelled or interrupted."""
    return _unknown("the caller was cancelled or interrupted while the tool ran")


def unrecorded() -> Execution:
    """Return what a run came to whose result could not be recorded."""
    return _unknown("the tool ran, but its result could not be recorded")


def unavailable(name: str) -> Execution:
    """Return what a run came to that never began: the tool `name` has no function."""
    return Execution(
        failure=Failure(FailureCode.TOOL_UNAVAILABLE, f"no function is registered for {name}"), started=False
    )


def _timed_out(timeout: float | None) -> Execution:
    return _unknown(f"the tool gave no result within {timeout:g} seconds", FailureCode.TOOL_TIMEOUT)


# Nobody knows how far it got, so nobody may simply try again.
def _unknown(message: str, code: FailureCode = FailureCode.TOOL_EXECUTION_FAILED) -> Execution:
    return Execution(failure=Failure(code, message, {"effect": "unknown"}))
