"""One tool ready to be run: its function with all that its entry states about how it runs, and about its result."""

from __future__ import annotations

import inspect
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.errors import UsageError
from pdp.execution.failures import ToolArgumentError, ToolResultError, failure_of, secret_texts
from pdp.execution.run import LateThreads, arun, run, timed_out, unavailable
from pdp.json import JsonValueError, canonical, check_json
from pdp.manifest.fields import duration_seconds
from pdp.manifest.schema.compile import compile_schema
from pdp.manifest.schema.walk import arguments_of
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pdp.manifest.model import DeclaredTool, Tool

MAX_RESULT: Final = 1024 * 1024
"""Bytes of a result's canonical JSON at most, unless the application states otherwise."""

_SHOWN: Final = 3


class ToolRunner:
    """Runs one tool: within its time-out, again where that does no harm, its result held against its schema.

    Shared between threads and tasks. What a tool raises is in `Execution.error`; the model gets the failure's message.

    Args:
        entry: the effective entry; its `timeout` is for all attempts together.
        function: the tool; None for one of type `cli`, which states its program itself.
        max_result: bytes of a result's canonical JSON at most.

    Raises:
        UsageError: no function and no program, or a result schema or program that cannot be used.
    """

    def __init__(
        self, entry: Tool, function: Callable[..., Any] | None = None, *, max_result: int = MAX_RESULT
    ) -> None:
        if function is None and entry.type != "cli":
            raise UsageError(f"tool {entry.name} has no function", hint="give it one, or write `type: cli`")
        self.entry = entry
        self._is_program = function is None
        if function is None:
            from pdp.execution.program import CliTool  # noqa: PLC0415 - only tools of type `cli`

            function = CliTool(entry)
        self.function: Callable[..., Any] = function
        self.attempts = attempts(entry)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None
        self._results = ResultContract(entry, max_bytes=max_result)
        self._late = LateThreads()
        self._foreign = _parameters(self.function) - arguments_of(entry.schema_).keys()

    def refused(self, arguments: Mapping[str, Any]) -> Execution | None:
        """Return the failure of a call that is not to be run; None: run it.

        Too many of its threads hang, or an argument has the name of another parameter of the function, such as what it
        gets of state and config: a schema that admits more than its properties admits any name.
        """
        for name in sorted(self._foreign & arguments.keys()):
            error = ToolArgumentError(name, "is not an argument of this tool")
            return Execution(failure=failure_of(error), error=error, started=False)
        return self._full()

    def run(self, arguments: Mapping[str, Any]) -> Execution:
        """Run the tool with the decided arguments and wait for its outcome; it never raises what a tool raised."""
        if self.attempts == 1:
            return self._attempt(arguments, self.timeout)
        from pdp.execution.retry import retried  # noqa: PLC0415 - only tools that state retries

        return self._with_timeout(retried(partial(self._attempt, arguments), self.attempts, self.timeout))

    async def arun(self, arguments: Mapping[str, Any]) -> Execution:
        """Async variant of `run`."""
        if self.attempts == 1:
            return await self._aattempt(arguments, self.timeout)
        from pdp.execution.retry import aretried  # noqa: PLC0415 - only tools that state retries

        return self._with_timeout(await aretried(partial(self._aattempt, arguments), self.attempts, self.timeout))

    def _attempt(self, arguments: Mapping[str, Any], left: float | None) -> Execution:
        secrets = self._secrets(arguments)
        return self._full() or self._checked(
            run(self.function, self._own(arguments), left, secrets, self._late), secrets
        )

    async def _aattempt(self, arguments: Mapping[str, Any], left: float | None) -> Execution:
        secrets = self._secrets(arguments)
        return self._full() or self._checked(
            await arun(self.function, self._own(arguments), left, secrets, self._late), secrets
        )

    # Another attempt gets what was decided, whatever the one before did with it.
    def _own(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return deepcopy(dict(arguments)) if self.attempts > 1 else arguments

    def _secrets(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        return secret_texts(arguments, self.entry.sensitive) if self.entry.sensitive else ()

    def _checked(self, execution: Execution, secrets: Sequence[str]) -> Execution:
        return self._results.checked(self._believed(execution), secrets)

    def _full(self) -> Execution | None:
        why = self._late.why_full()
        return unavailable(self.entry.name, why) if why else None

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

    # The last attempt knows only what the others had left of the time.
    def _with_timeout(self, execution: Execution) -> Execution:
        if execution.failure is None or execution.failure.code is not FailureCode.TOOL_TIMEOUT:
            return execution
        return execution._replace(failure=timed_out(self.timeout).failure)


class ResultContract:
    """What every result of one tool must be.

    With a result schema it must be JSON of that schema; its objects may hold more than the schema names, unless the
    schema forbids that. Without one it may be any object; of those that are not JSON only bytes and text are measured.

    Args:
        entry: the tool's entry.
        max_bytes: bytes of canonical JSON at most, or of a result that is bytes or text.

    Raises:
        UsageError: the result schema cannot be compiled.
    """

    def __init__(self, entry: DeclaredTool, *, max_bytes: int = MAX_RESULT) -> None:
        self._validator = None if entry.result_schema is None else compile_schema(entry.result_schema)
        self._max_bytes = max_bytes

    def checked(self, execution: Execution, secrets: Sequence[str] = ()) -> Execution:
        """Return `execution`, or a failure when its result is not what the entry declares.

        The tool ran, so the failure's details state `{"effect": "done"}`: nobody may simply try again.
        """
        if execution.failure is not None:
            return execution
        try:
            self._check(execution.result)
        except ToolResultError as error:
            error.details["effect"] = "done"
            return execution._replace(result=None, failure=failure_of(error, secrets), error=error)
        return execution

    def _check(self, result: Any) -> None:
        try:
            if self._validator is not None:
                check_json(result)
            size = len(canonical(result))
        except JsonValueError as error:
            if self._validator is not None:
                raise ToolResultError(f"the result is not JSON: {error}") from error
            size = _size(result)
        if size > self._max_bytes:
            raise ToolResultError(f"the result has {size} bytes, at most {self._max_bytes} are admitted", "too_large")
        if self._validator is not None and not self._validator.is_valid(result):
            faults = sorted(
                "result"
                + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.instance_path)
                + f": {fault.message}"
                for fault in self._validator.iter_errors(result)
            )
            raise ToolResultError("the result does not match its schema: " + "; ".join(faults[:_SHOWN]))


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


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()  # a function written in C may not tell
    return frozenset(item.name for item in parameters if item.kind not in {item.VAR_POSITIONAL, item.VAR_KEYWORD})


def _size(result: Any) -> int:
    """Return how many bytes a result has that is not JSON; 0 where that is unknown."""
    if isinstance(result, str):
        return len(result.encode(errors="surrogatepass"))
    if isinstance(result, memoryview):
        return result.nbytes
    return len(result) if isinstance(result, bytes | bytearray) else 0
