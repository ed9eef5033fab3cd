"""One tool ready to be run: its function with all that its entry states about how it runs, and about its result.

Whatever happens is an `Execution`: a result, or a failure with a fixed code.

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

MAX_RESULT: Final = 1024 * 1024  # bytes of a result's canonical JSON at most
MAX_RESULT_VALUES: Final = 64 * 1024  # values of a result at most, each counted wherever it stands
STOP_SECONDS: Final = 2.0  # how long a coroutine that was cancelled is waited for, whatever it does
MOST_LATE: Final = 64  # how many threads of one tool may run on after their time-out; then the tool is unavailable
FIRST_PAUSE: Final = 0.1  # seconds, of which the first pause is a random part; each later one is of twice as many
LONGEST_PAUSE: Final = 5.0  # seconds that a pause takes at most

_SHOWN: Final = 3

T = TypeVar("T")


@contextmanager
def set_within(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a variable this value within the block, in this thread or task and in those that it starts."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


class ToolRunner:
    """Runs one tool: within its time-out, again where that does no harm, its result held against its schema.

    Shared between threads and tasks. What a tool raises is in `Execution.error`; the model gets the failure's message.

    The entry's `timeout` is for all attempts together. Without a function, the tool is the program that it states. An
    attribute `max_result` of the function replaces `MAX_RESULT`.
    UsageError: no function and no program, or a result schema or program that cannot be used.
    """

    def __init__(self, entry: Tool, function: Callable[..., Any] | None = None) -> None:
        self.entry = entry
        self._is_program = function is None
        if function is None:
            from pdp.execution.program import CliTool  # noqa: PLC0415 - only tools of type `cli`

            function = CliTool(entry)
        self.function: Callable[..., Any] = function
        self._most: int = getattr(function, "max_result", MAX_RESULT)
        self.attempts = attempts(entry)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None
        self._validator = None if entry.result_schema is None else compile_schema(entry.result_schema)
        self._any_text = entry.safety is not None and entry.safety.error_text is True
        self._late: set[Future[Execution]] = set()
        parameters = {parameter.name for parameter in named_parameters(self.function)}
        self._foreign = parameters - argument_schemas(entry.schema_).keys()

    def refused(self, arguments: Mapping[str, Any]) -> Execution | None:
        """Return the failure of a call that is not to be run; None: run it.

        Too many of its threads hang, or an argument has the name of another parameter of the function, such as what it
        gets of state and config: a schema that admits more than its properties admits any name.
        """
        for name in sorted(self._foreign & arguments.keys()):
            error = ToolArgumentError(name, "is not an argument of this tool")
            return Execution(failure=failure_of(error), error=error, started=False)
        if len(self._late) < MOST_LATE:
            return None
        return unavailable(self.entry.name, f"{MOST_LATE} of its calls timed out and are still running")

    def run(self, arguments: Mapping[str, Any]) -> Execution:
        """Run the tool with the decided arguments and wait for its outcome; it never raises what a tool raised."""
        deadline, mask = self._deadline(), self._mask(arguments)
        for number, pause in enumerate(pauses(self.attempts, deadline), 1):
            if pause:
                time.sleep(pause)
            execution = run_once(self.function, self._own(arguments), _left(deadline), self._late)
            execution = self._checked(execution, mask)._replace(attempts=number)
            if not worth_repeating(execution):
                break
        return execution

    async def arun(self, arguments: Mapping[str, Any]) -> Execution:
        """Async variant of `run`."""
        deadline, mask = self._deadline(), self._mask(arguments)
        for number, pause in enumerate(pauses(self.attempts, deadline), 1):
            if pause:
                await asyncio.sleep(pause)
            execution = await arun_once(self.function, self._own(arguments), _left(deadline), self._late)
            execution = self._checked(execution, mask)._replace(attempts=number)
            if not worth_repeating(execution):
                break
        return execution

    def believed(self, execution: Execution, arguments: Mapping[str, Any]) -> Execution:
        """Return what a run elsewhere came to as far as it is believed: its result checked, its failure made plain."""
        failure = execution.failure
        if failure is not None:
            mask = Mask(self.entry.sensitive, arguments)
            details = mask.value({**failure.details, **({} if execution.started else {"effect": "none"})})
            failure = Failure(failure.code, safe_text(mask.text(failure.message)), details)
            return self._believed(execution._replace(failure=failure))
        return self._checked(execution, self._mask(arguments))

    def _deadline(self) -> float | None:
        return None if self.timeout is None else time.monotonic() + self.timeout

    # Another attempt gets what was decided, whatever the one before did with it.
    def _own(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return deepcopy(dict(arguments)) if self.attempts > 1 else arguments

    def _mask(self, arguments: Mapping[str, Any]) -> Mask | None:
        return Mask(self.entry.sensitive, arguments) if self.entry.sensitive else None

    def _checked(self, execution: Execution, mask: Mask | None) -> Execution:
        """Return `execution`, or a failure when its result is not what the entry declares.

        The tool ran, so the failure's details state `{"effect": "done"}`: nobody may simply try again.
        """
        if execution.failure is None:
            try:
                self._check(execution.result)
            except ToolResultError as error:
                error.details["effect"] = "done"
                return execution._replace(result=None, failure=failure_of(error, mask), error=error)
            return execution
        if execution.failure.code is FailureCode.TOOL_TIMEOUT:
            # The last attempt knows only what the others had left of the time.
            return timed_out(self.timeout)
        if (mask is not None or self._any_text) and execution.error is not None:
            execution = execution._replace(failure=failure_of(execution.error, mask, any_text=self._any_text))
        return self._believed(execution)

    # With a result schema it must be JSON of that schema; its objects may hold more than the schema names, unless the
    # schema forbids that. Without one it may be any object; of what is not JSON only bytes and text are measured.
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
            raise ToolResultError(f"the result has {size} bytes, at most {self._most} are admitted", "too_large")
        validator = self._validator
        if validator is not None and (size > validator.free_bytes or not validator.is_valid(result)):
            lines = validator.lines(result, "result")
            if lines:
                message = "the result does not match its schema: " + "; ".join(lines[:_SHOWN])
                raise ToolResultError(message, result=result)

    # A function that says "not available" in the middle of its work may have had an effect. A program is believed: its
    # exit code, or its absence, says that nothing was done.
    def _believed(self, execution: Execution) -> Execution:
        failure = execution.failure
        if failure is None or execution.started or self._is_program or not self.entry.has_effects:
            return execution
        if failure.details.get("effect") == "none":
            return execution
        details = {"effect": "unknown", **failure.details}
        return execution._replace(failure=Failure(failure.code, failure.message, details), started=True)


def attempts(entry: DeclaredTool) -> int:
    """Return how often a tool may be tried: once, and its `retries` more where it does no harm twice.

    That is what `safety.idempotent` states; where it states nothing, what has no effects. A required idempotency key
    changes nothing: the tool itself never sees it.
    """
    idempotent = entry.safety.idempotent if entry.safety else None
    if idempotent is None:
        idempotent = not entry.has_effects
    return 1 + entry.retries if idempotent else 1


def pauses(times: int, deadline: float | None) -> Iterator[float]:
    """Yield the seconds to wait before each attempt: none before the first one, then pauses that grow and vary.

    It ends after `times` attempts, or when the next pause would not fit before the deadline.
    """
    yield 0.0
    for number in range(times - 1):
        pause = random.uniform(0, min(FIRST_PAUSE * 2**number, LONGEST_PAUSE))  # noqa: S311 - not a secret
        if deadline is not None and time.monotonic() + pause >= deadline:
            return
        yield pause


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
        and not isinstance(execution.error, ToolArgumentError | ToolResultError)
    )


def _size(result: Any) -> int:
    if isinstance(result, str):
        return len(result.encode(errors="surrogatepass"))
    return memoryview(result).nbytes if isinstance(result, bytes | bytearray | memoryview) else 0


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def run_once(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,
    late: set[Future[Execution]] | None = None,
) -> Execution:
    """Call `function` with the decided arguments and wait for its result, at most `timeout` seconds.

    A coroutine, which has an event loop of its own, is cancelled then, and waited for `STOP_SECONDS` more. A plain
    function cannot be stopped: it may still have its effect. `late` has the work of threads that run on although nobody
    waits for them any more, until they end.
    """
    if is_asynchronous(function):
        return _in_loop_of_its_own(function, arguments, timeout, late)
    if timeout is None:
        return _called(function, arguments)
    work = _in_thread(partial(_called, function, arguments))
    try:
        return work.result(timeout)
    except TimeoutError:
        _leave(work, late)
        return timed_out(timeout)


def is_asynchronous(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def arun_once(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,  # noqa: ASYNC109 - the manifest's, and reported as a failure
    late: set[Future[Execution]] | None = None,
) -> Execution:
    """Async variant of `run_once`: a plain function runs in a thread.

    When the caller is cancelled, so is a coroutine; a plain function runs on, and nobody waits for it.
    """
    if is_asynchronous(function):
        # A task of its own: one that ignores its cancellation would otherwise be waited for without end.
        task = asyncio.create_task(_acall(function, arguments))
        try:
            await asyncio.wait((task,), timeout=timeout)
            return task.result() if task.done() else timed_out(timeout)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=STOP_SECONDS)
                # Its later outcome is nobody's; read here, so that asyncio does not report it as never retrieved.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
    work = _in_thread(partial(_called, function, arguments))
    waiting = asyncio.wrap_future(work)
    try:
        await asyncio.wait((waiting,), timeout=timeout)
        return waiting.result() if waiting.done() else timed_out(timeout)
    finally:
        if not waiting.done():
            _leave(work, late)
        waiting.cancel()


def _leave(work: Future[Execution], late: set[Future[Execution]] | None) -> None:
    if late is not None:
        late.add(work)
        work.add_done_callback(late.discard)


async def _acall(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Execution:
    try:
        return Execution(result=await function(**arguments))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(error)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
        return _failed(error)


# A thread of its own, and a daemon: in a pool, tools that hang would keep others from running and the program from
# ending.
def _in_thread(work: Callable[[], Execution], future: Future[Execution] | None = None) -> Future[Execution]:
    future = future or Future()
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
    return future


def _in_loop_of_its_own(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    timeout: float | None,
    late: set[Future[Execution]] | None,
) -> Execution:
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def stoppable() -> Execution:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await arun_once(function, arguments, timeout)

    future: Future[Execution] = Future()
    try:
        # In here as well: an interrupt may come when the tool runs already and this thread has not heard of it.
        _in_thread(lambda: asyncio.run(stoppable()), future)
        # A coroutine that blocks its loop does not notice its own time-out.
        return future.result(None if timeout is None else timeout + 2 * STOP_SECONDS)
    except TimeoutError:
        _leave(future, late)
        return timed_out(timeout)
    except BaseException:
        if not future.done():
            # Interrupted while waiting: the tool is cancelled as well, and may end its processes.
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
            error = ToolResultError("the tool returned something that has yet to run; make it an async function")
            return _failed(error)
        return Execution(result=result)
    except Exception as raised:  # noqa: BLE001 - a tool may raise anything, and all of it is a failure
        return _failed(raised)


def _failed(error: BaseException) -> Execution:
    return Execution(failure=failure_of(error), error=error, started=not isinstance(error, ToolUnavailableError))


def cut_short() -> Execution:
    """Return the outcome of a run whose caller was cancelled or interrupted."""
    return unknown("the caller was cancelled or interrupted while the tool ran")


def unavailable(name: str, reason: str = "") -> Execution:
    """Return the outcome of a run that never began: for a reason, or since the tool `name` has no function."""
    message = f"{name} cannot run now: {reason}" if reason else f"no function is registered for {name}"
    return Execution(failure=Failure(FailureCode.TOOL_UNAVAILABLE, message), started=False)


def timed_out(timeout: float | None) -> Execution:
    """Return the outcome of a run that gave no result within `timeout` seconds."""
    within = "in time" if timeout is None else f"within {timeout:g} seconds"
    return unknown(f"the tool gave no result {within}", FailureCode.TOOL_TIMEOUT)


def unknown(message: str, code: FailureCode = FailureCode.TOOL_EXECUTION_FAILED) -> Execution:
    """Return the outcome of a run of which nobody knows how far it got: nobody may simply try again."""
    return Execution(failure=Failure(code, message, {"effect": "unknown"}))
