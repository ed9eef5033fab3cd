"""One run of a function: with the decided arguments alone, in bounded time; its outcome is an `Execution`.

Whatever happens is a result or a failure with a fixed code.

Source of the codes: tool layer document, safety contract.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.execution.failures import ToolResultError, ToolUnavailableError, failure_of
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

_log = logging.getLogger("pdp.execution")

STOP_SECONDS: Final = 2.0
"""How long a coroutine that was cancelled is waited for; then nobody waits any more, whatever it does."""

MOST_LATE: Final = 64
"""How many threads of one tool may run on after their time-out; then the tool is unavailable."""


class LateThreads:
    """The threads of one tool that run on although nobody waits for them any more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def add(self, work: Future[Execution]) -> None:
        """Count the thread that works for it, until it ends."""
        with self._lock:
            self._running += 1
        work.add_done_callback(self._ended)

    def why_full(self) -> str:
        """Return why the tool is not to be run; empty when it may be."""
        return f"{MOST_LATE} of its calls timed out and are still running" if self._running >= MOST_LATE else ""

    def _ended(self, _: Future[Execution]) -> None:
        with self._lock:
            self._running -= 1


def run(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,
    secrets: Sequence[str] = (),
    late: LateThreads | None = None,
) -> Execution:
    """Call `function` with the decided arguments and wait for its result, never longer than the time-out.

    Args:
        function: the tool; a coroutine function is run in an event loop of its own.
        arguments: keyword arguments, exactly as decided.
        timeout: seconds to wait, or None. A coroutine is cancelled then, and waited for `STOP_SECONDS` more. A plain
            function cannot be stopped: it may still have its effect, and the failure's details say
            `{"effect": "unknown"}`.
        secrets: texts that a failure's message must not show; see `pdp.execution.failures.secret_texts`.
        late: counts the threads that are left behind.
    """
    late = late or LateThreads()
    if is_asynchronous(function):
        if timeout is None and not _loop_is_running():
            return asyncio.run(arun(function, arguments, timeout, secrets))
        return _in_loop_of_its_own(lambda: arun(function, arguments, timeout, secrets), timeout, late)
    if timeout is None:
        return _attempt(function, arguments, secrets)
    work = _in_thread(partial(_attempt, function, arguments, secrets))
    try:
        return work.result(timeout)
    except TimeoutError:
        late.add(work)
        return timed_out(timeout)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def arun(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,  # noqa: ASYNC109 - the manifest's, and reported as a failure
    secrets: Sequence[str] = (),
    late: LateThreads | None = None,
) -> Execution:
    """Async variant of `run`: a plain function runs in a thread.

    When the caller is cancelled, so is a coroutine; a plain function runs on, and nobody waits for it.
    """
    if is_asynchronous(function):
        # A task of its own: one that ignores its cancellation would otherwise be waited for without end.
        begun = time.monotonic()
        task = asyncio.create_task(_acall(function, arguments, secrets, None if timeout is None else begun + timeout))
        try:
            await asyncio.wait((task,), timeout=timeout)
            if task.done():
                return task.result() or timed_out(timeout)
        finally:
            if not task.done():
                await _stop(task)
        return timed_out(timeout)
    work = _in_thread(partial(_attempt, function, arguments, secrets))
    waiting = asyncio.wrap_future(work)
    try:
        await asyncio.wait((waiting,), timeout=timeout)
        return waiting.result() if waiting.done() else timed_out(timeout)
    finally:
        if not waiting.done():
            (late or LateThreads()).add(work)
        waiting.cancel()


async def _acall(
    function: Callable[..., Any], arguments: Mapping[str, Any], secrets: Sequence[str], deadline: float | None
) -> Execution | None:
    """Return a coroutine's outcome; None: a result after the deadline, as of one that has blocked its loop."""
    try:
        result = await function(**arguments)
        return None if _has_blocked(function, deadline) else Execution(result=result)
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return _failed(error, secrets)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
        _has_blocked(function, deadline)
        return _failed(error, secrets)


def _has_blocked(function: Callable[..., Any], deadline: float | None) -> bool:
    """Return whether a coroutine ended after its deadline; log it where it could not be cancelled in time."""
    late = 0.0 if deadline is None else time.monotonic() - deadline
    if late > 0 and not _is_cancelled():
        # Its module and name: nothing of the model, and no argument.
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        _log.warning(
            "%s ended %.3f s after its time-out, since its event loop was blocked: make what blocks a plain function",
            name,
            late,
        )
    return late > 0


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stop(task: asyncio.Task[Execution | None]) -> None:
    task.cancel()
    await asyncio.wait((task,), timeout=STOP_SECONDS)
    # Its later outcome is nobody's; read here, so that asyncio does not report it as never retrieved.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# A thread of its own, and a daemon: in a pool, tools that hang would keep others from running and the program from
# ending.
def _in_thread(work: Callable[[], Execution]) -> Future[Execution]:
    future: Future[Execution] = Future()
    _start_thread(work, future)
    return future


def _start_thread(work: Callable[[], Execution], future: Future[Execution]) -> None:
    context = contextvars.copy_context()
    future.set_running_or_notify_cancel()

    def attempt() -> None:
        try:
            execution = context.run(work)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the caller's
            future.set_exception(error)
        else:
            future.set_result(execution)

    threading.Thread(target=attempt, name="pdp-tool", daemon=True).start()


def _in_loop_of_its_own(
    work: Callable[[], Coroutine[Any, Any, Execution]], timeout: float | None, late: LateThreads
) -> Execution:
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def stoppable() -> Execution:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    future: Future[Execution] = Future()
    try:
        # In here as well: an interrupt may come when the tool runs already and this thread has not heard of it.
        _start_thread(lambda: asyncio.run(stoppable()), future)
        # A coroutine that blocks its loop does not notice its own time-out.
        return future.result(None if timeout is None else timeout + 2 * STOP_SECONDS)
    except TimeoutError:
        late.add(future)
        return timed_out(timeout)
    except BaseException:
        if not future.done():
            # Interrupted while waiting: the tool is cancelled as well, and may end its processes.
            with suppress(Exception):
                loop, task = begun.result(STOP_SECONDS)
                loop.call_soon_threadsafe(task.cancel if task else loop.stop)
                future.exception(2 * STOP_SECONDS)
        raise


def _attempt(function: Callable[..., Any], arguments: Mapping[str, Any], secrets: Sequence[str]) -> Execution:
    try:
        result = function(**arguments)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            error = ToolResultError("the tool returned something that has yet to run; make it an async function")
            return _failed(error, secrets)
        return Execution(result=result)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
        return _failed(error, secrets)


def _failed(error: BaseException, secrets: Sequence[str]) -> Execution:
    started = not isinstance(error, ToolUnavailableError)
    return Execution(failure=failure_of(error, secrets), error=error, started=started)


def cut_short() -> Execution:
    """Return the outcome of a run whose caller was cancelled or interrupted."""
    return _unknown("the caller was cancelled or interrupted while the tool ran")


def unrecorded() -> Execution:
    """Return the outcome of a run whose result could not be recorded."""
    return _unknown("the tool ran, but its result could not be recorded")


def unavailable(name: str, reason: str = "") -> Execution:
    """Return the outcome of a run that never began: for a reason, or since the tool `name` has no function."""
    message = f"{name} cannot run now: {reason}" if reason else f"no function is registered for {name}"
    return Execution(failure=Failure(FailureCode.TOOL_UNAVAILABLE, message), started=False)


def timed_out(timeout: float | None) -> Execution:
    """Return the outcome of a run that gave no result within `timeout` seconds."""
    if timeout is None:
        return _unknown("the tool gave no result in time", FailureCode.TOOL_TIMEOUT)
    return _unknown(f"the tool gave no result within {timeout:g} seconds", FailureCode.TOOL_TIMEOUT)


# Nobody knows how far it got, so nobody may simply try again.
def _unknown(message: str, code: FailureCode = FailureCode.TOOL_EXECUTION_FAILED) -> Execution:
    return Execution(failure=Failure(code, message, {"effect": "unknown"}))
