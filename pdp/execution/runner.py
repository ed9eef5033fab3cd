"""Run one tool with the time-out, retries and result schema of its manifest entry.

Source: tool layer document, safety contract ("idempotent: safe to retry automatically; otherwise the loop reports a
failure and lets the caller decide"); tool pattern library, 9.2 (effect classes).
"""

import asyncio
import contextvars
import inspect
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from functools import partial
from typing import Any, Final, TypeVar

from pdp.contract.sensitive import Mask
from pdp.documents.arguments import end_coroutine, named_parameters
from pdp.execution.failures import ToolArgumentError, ToolResultError, ToolUnavailableError, failure_of, safe_text
from pdp.json import JsonTooLargeError, JsonValueError, canonical, check_json
from pdp.manifest.fields import duration_seconds
from pdp.manifest.model import DeclaredTool, Tool
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.walk import argument_schemas
from pdp.proposal import Execution, Failure, FailureCode

MAX_RESULT: Final = 1024 * 1024  # Maximum bytes of a result's canonical JSON.
MAX_RESULT_VALUES: Final = 64 * 1024  # Maximum number of values in a result, nested ones included.
STOP_SECONDS: Final = 2.0  # Seconds to wait for a cancelled coroutine to stop.
MAX_HUNG_THREADS: Final = 64  # A tool with this many hung threads is unavailable.
FIRST_PAUSE: Final = 0.1  # Maximum seconds of the first pause; each later maximum is doubled. Pauses are random.
LONGEST_PAUSE: Final = 5.0  # Maximum seconds of any pause.

_SHOWN: Final = 3

T = TypeVar("T")


@contextmanager
def set_within(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Set a context variable within a `with` block, including the threads and tasks that start in the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


class ToolRunner:
    """Runs one tool within its time-out, retries the tool where that is safe, and checks its result against the schema.

    All attempts share the manifest entry's `timeout`. Without a function, the entry's program runs. A function's
    attribute `max_result` replaces `MAX_RESULT`. Raises `UsageError` if the program or result schema is unusable.
    """

    def __init__(self, entry: Tool, function: Callable[..., Any] | None = None) -> None:
        self.entry = entry
        self._is_program = function is None
        if function is None:
            from pdp.execution.program import CliTool  # noqa: PLC0415 - only for tools of type `cli`

            function = CliTool(entry)
        self.function: Callable[..., Any] = function
        self._most: int = getattr(function, "max_result", MAX_RESULT)
        self.attempts = attempts(entry)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None
        self._validator = None if entry.result_schema is None else compile_schema(entry.result_schema)
        self._any_text = entry.safety is not None and entry.safety.error_text is True
        self._hung: set[Future[Execution]] = set()
        parameters = {parameter.name for parameter in named_parameters(self.function)}
        self._injected = parameters - argument_schemas(entry.schema_).keys()

    def refused(self, arguments: Mapping[str, Any]) -> Execution | None:
        """Return a failure if too many threads of the tool hang, or an argument is named like an injected parameter."""
        for name in sorted(self._injected & arguments.keys()):
            error = ToolArgumentError(name, "is not an argument of this tool")
            return Execution(failure=failure_of(error), error=error, started=False)
        if len(self._hung) < MAX_HUNG_THREADS:
            return None
        return unavailable(self.entry.name, f"{MAX_HUNG_THREADS} of its calls timed out and are still running")

    def run(self, arguments: Mapping[str, Any]) -> Execution:
        """Run the tool with the decided arguments and return the outcome. The tool's exceptions become failures."""
        deadline, mask = self._deadline(), self._mask(arguments)
        for number, pause in enumerate(pauses(self.attempts, deadline), 1):
            if pause:
                time.sleep(pause)
            execution = run_once(self.function, self._copied(arguments), _remaining(deadline), self._hung)
            execution = self._checked(execution, mask)._replace(attempts=number)
            if not is_retryable(execution):
                break
        return execution

    async def arun(self, arguments: Mapping[str, Any]) -> Execution:
        """Run the tool as `run` does, without blocking the event loop."""
        deadline, mask = self._deadline(), self._mask(arguments)
        for number, pause in enumerate(pauses(self.attempts, deadline), 1):
            if pause:
                await asyncio.sleep(pause)
            execution = await arun_once(self.function, self._copied(arguments), _remaining(deadline), self._hung)
            execution = self._checked(execution, mask)._replace(attempts=number)
            if not is_retryable(execution):
                break
        return execution

    def verified(self, execution: Execution, arguments: Mapping[str, Any]) -> Execution:
        """Return the outcome of a run elsewhere, after the checks and masking that a run in this process gets."""
        failure = execution.failure
        if failure is not None:
            mask = Mask(self.entry.sensitive, arguments)
            details = mask.value({**failure.details, **({} if execution.started else {"effect": "none"})})
            failure = Failure(failure.code, safe_text(mask.text(failure.message)), details)
            return self._with_effect(execution._replace(failure=failure))
        return self._checked(execution, self._mask(arguments))

    def _deadline(self) -> float | None:
        return None if self.timeout is None else time.monotonic() + self.timeout

    # Each attempt gets its own copy of the arguments, because the function may change them.
    def _copied(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return deepcopy(dict(arguments)) if self.attempts > 1 else arguments

    def _mask(self, arguments: Mapping[str, Any]) -> Mask | None:
        return Mask(self.entry.sensitive, arguments) if self.entry.sensitive else None

    def _checked(self, execution: Execution, mask: Mask | None) -> Execution:
        """Return the outcome, or a failure with the effect `done` if the result breaks the size limit or the schema."""
        if execution.failure is None:
            try:
                self._check(execution.result)
            except ToolResultError as error:
                error.details["effect"] = "done"
                return execution._replace(result=None, failure=failure_of(error, mask), error=error)
            return execution
        if execution.failure.code is FailureCode.TOOL_TIMEOUT:
            # The last attempt had only the rest of the call's time-out, but the message names the whole time-out.
            return timed_out(self.timeout)
        if (mask is not None or self._any_text) and execution.error is not None:
            execution = execution._replace(failure=failure_of(execution.error, mask, any_text=self._any_text))
        return self._with_effect(execution)

    # With a result schema, the result must be JSON that matches it. Without one, any object is allowed, and objects
    # that are not JSON have a size limit only if they are bytes or text.
    def _check(self, result: Any) -> None:
        try:
            check_json(result, most=max(1, self._most // MAX_RESULT) * MAX_RESULT_VALUES)
            size = len(canonical(result))
        except JsonTooLargeError as error:
            raise ToolResultError(f"the result is too large: {error}", "too_large") from error
        except JsonValueError as error:
            if self._validator is not None:
                raise ToolResultError(f"the result is not JSON: {error}") from error
            size = _size(result)
        if size > self._most:
            raise ToolResultError(f"the result has {size} bytes, but at most {self._most} are allowed", "too_large")
        validator = self._validator
        if validator is not None and (size > validator.free_bytes or not validator.is_valid(result)):
            lines = validator.lines(result, "result")
            if lines:
                message = "the result does not match its schema: " + "; ".join(lines[:_SHOWN])
                raise ToolResultError(message, result=result)

    # A function that raises `ToolUnavailableError` halfway may have had an effect, but a program's exit code is
    # trusted.
    def _with_effect(self, execution: Execution) -> Execution:
        failure = execution.failure
        if failure is None or execution.started or self._is_program or not self.entry.has_effects:
            return execution
        if failure.details.get("effect") == "none":
            return execution
        details = {"effect": "unknown", **failure.details}
        return execution._replace(failure=Failure(failure.code, failure.message, details), started=True)


def attempts(entry: DeclaredTool) -> int:
    """Return how often a tool may be tried: once, plus its `retries` if the tool is idempotent.

    A tool without effects is idempotent by default. An idempotency key changes nothing, because no tool sees the key.
    """
    idempotent = entry.safety.idempotent if entry.safety else None
    if idempotent is None:
        idempotent = not entry.has_effects
    return 1 + entry.retries if idempotent else 1


def pauses(times: int, deadline: float | None) -> Iterator[float]:
    """Yield the seconds to wait before each attempt: 0, then growing random pauses. Stop before the deadline."""
    yield 0.0
    for number in range(times - 1):
        pause = random.uniform(0, min(FIRST_PAUSE * 2**number, LONGEST_PAUSE))  # noqa: S311 - not a secret
        if deadline is not None and time.monotonic() + pause >= deadline:
            return
        yield pause


def is_retryable(execution: Execution) -> bool:
    """Return whether another attempt could succeed.

    After a time-out, the tool may still be running. With a missing tool, wrong argument or result, a retry is useless.
    """
    failure = execution.failure
    return (
        failure is not None
        and failure.code is FailureCode.TOOL_EXECUTION_FAILED
        and execution.outcome == "failed"
        and isinstance(execution.error, Exception)
        and not isinstance(execution.error, ToolArgumentError | ToolResultError)
    )


def _size(result: Any) -> int:
    if isinstance(result, str):
        return len(result.encode(errors="surrogatepass"))
    return memoryview(result).nbytes if isinstance(result, bytes | bytearray | memoryview) else 0


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def run_once(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,
    hung: set[Future[Execution]] | None = None,
) -> Execution:
    """Call a tool's function with the decided arguments and wait at most `timeout` seconds for its outcome.

    A coroutine runs in a separate event loop. On a time-out, the coroutine is cancelled and has `STOP_SECONDS` to stop.
    A plain function cannot be stopped and may still have its effect. Its thread is in `hung` until the function ends.
    """
    if is_asynchronous(function):
        return _in_new_loop(function, arguments, timeout, hung)
    if timeout is None:
        return _called(function, arguments)
    work = _in_thread(partial(_called, function, arguments))
    try:
        return work.result(timeout)
    except TimeoutError:
        _abandon(work, hung)
        return timed_out(timeout)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def arun_once(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,  # noqa: ASYNC109 - a time-out is an outcome here
    hung: set[Future[Execution]] | None = None,
) -> Execution:
    """Like `run_once`, without blocking the event loop. If the caller is cancelled, a plain function keeps running."""
    if is_asynchronous(function):
        # The coroutine runs in its own task, because waiting for one that ignores its cancellation would never end.
        task = asyncio.create_task(_acall(function, arguments))
        try:
            await asyncio.wait((task,), timeout=timeout)
            return task.result() if task.done() else timed_out(timeout)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=STOP_SECONDS)
                # The outcome of the abandoned task is read, so that asyncio does not report it as never retrieved.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
    work = _in_thread(partial(_called, function, arguments))
    waiting = asyncio.wrap_future(work)
    try:
        await asyncio.wait((waiting,), timeout=timeout)
        return waiting.result() if waiting.done() else timed_out(timeout)
    finally:
        if not waiting.done():
            _abandon(work, hung)
        waiting.cancel()


def _abandon(work: Future[Execution], hung: set[Future[Execution]] | None) -> None:
    if hung is not None:
        hung.add(work)
        work.add_done_callback(hung.discard)


async def _acall(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Execution:
    try:
        return Execution(result=await function(**arguments))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(error)
    except Exception as error:  # noqa: BLE001 - any exception of a tool is a failure
        return _failed(error)


# Each tool call runs in a new daemon thread: in a pool, hung tools would block other tools and the end of the program.
def _in_thread(work: Callable[[], Execution], future: Future[Execution] | None = None) -> Future[Execution]:
    future = future or Future()
    context = contextvars.copy_context()
    future.set_running_or_notify_cancel()

    def attempt() -> None:
        try:
            execution = context.run(work)
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting caller
            future.set_exception(error)
        else:
            future.set_result(execution)

    threading.Thread(target=attempt, name="pdp-tool", daemon=True).start()
    return future


def _in_new_loop(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,
    hung: set[Future[Execution]] | None,
) -> Execution:
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def stoppable() -> Execution:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await arun_once(function, arguments, timeout)

    future: Future[Execution] = Future()
    try:
        # The thread starts inside the block, because an interrupt may come right after the start.
        _in_thread(lambda: asyncio.run(stoppable()), future)
        # A coroutine that blocks its event loop does not notice its own time-out.
        return future.result(None if timeout is None else timeout + 2 * STOP_SECONDS)
    except TimeoutError:
        _abandon(future, hung)
        return timed_out(timeout)
    except BaseException:
        if not future.done():
            # The wait was interrupted, so the tool is cancelled too and can end its processes.
            with suppress(Exception):
                loop, task = begun.result(STOP_SECONDS)
                loop.call_soon_threadsafe(task.cancel if task else loop.stop)
                future.exception(2 * STOP_SECONDS)
        raise


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Execution:
    try:
        result = function(**arguments)
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            end_coroutine(result)
            error = ToolResultError("the tool returned an unfinished coroutine or generator; make it an async function")
            return _failed(error)
        return Execution(result=result)
    except Exception as raised:  # noqa: BLE001 - any exception of a tool is a failure
        return _failed(raised)


def _failed(error: BaseException) -> Execution:
    return Execution(failure=failure_of(error), error=error, started=not isinstance(error, ToolUnavailableError))


def cut_short() -> Execution:
    """Return the outcome of a run whose caller was cancelled or interrupted."""
    return unknown("the caller was cancelled or interrupted while the tool ran")


def unavailable(name: str, reason: str = "") -> Execution:
    """Return the outcome of a run that did not start, because of `reason` or because no function is registered."""
    message = f"{name} cannot run now: {reason}" if reason else f"no function is registered for {name}"
    return Execution(failure=Failure(FailureCode.TOOL_UNAVAILABLE, message), started=False)


def timed_out(timeout: float | None) -> Execution:
    """Return the outcome of a run without a result within `timeout` seconds."""
    within = "in time" if timeout is None else f"within {timeout:g} seconds"
    return unknown(f"the tool gave no result {within}", FailureCode.TOOL_TIMEOUT)


def unknown(message: str, code: FailureCode = FailureCode.TOOL_EXECUTION_FAILED) -> Execution:
    """Return the outcome of a run that may have had an effect. The caller must not simply retry the call."""
    return Execution(failure=Failure(code, message, {"effect": "unknown"}))
