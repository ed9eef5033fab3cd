"""One tool ready to be run: its function with everything that its entry says about how it runs."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pdp.errors import UsageError
from pdp.execution.failures import ToolArgumentError, failure_of, secret_texts
from pdp.execution.program import CliTool
from pdp.execution.results import MAX_RESULT, ResultContract
from pdp.execution.retry import aretried, attempts, retried
from pdp.execution.run import LateThreads, arun, run, timed_out, unavailable
from pdp.manifest.fields import duration_seconds
from pdp.manifest.schema.walk import arguments_of
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.manifest.model import Tool


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
        self.function: Callable[..., Any] = CliTool(entry) if function is None else function
        self.attempts = attempts(entry)
        self.timeout = duration_seconds(entry.timeout) if entry.timeout else None
        self._results = ResultContract(entry, max_bytes=max_result)
        self._late = LateThreads()
        self._foreign = _parameters(self.function) - arguments_of(entry.schema_).keys()

    def refused(self, arguments: Mapping[str, Any]) -> Execution | None:
        """Return the failure of a call that is not to be run; None: run it.

        Too many of its threads hang, or arguments would fill a parameter that is not theirs.

        A schema that admits more than its properties admits any name; those of the function's other parameters, such
        as what it is given of state and config, are not the model's.
        """
        for name in sorted(self._foreign & arguments.keys()):
            error = ToolArgumentError(name, "is no argument of this tool")
            return Execution(failure=failure_of(error), error=error, started=False)
        return self._full()

    def run(self, arguments: Mapping[str, Any]) -> Execution:
        """Run the tool with the decided arguments and wait for what it comes to; it never raises what a tool raised."""
        secrets = secret_texts(arguments, self.entry.sensitive)

        def attempt(left: float | None) -> Execution:
            full = self._full()
            if full is not None:
                return full
            execution = run(self.function, self._own(arguments), left, secrets, self._late)
            return self._results.held(self._believed(execution), secrets)

        return self._said(retried(attempt, self.attempts, self.timeout))

    async def arun(self, arguments: Mapping[str, Any]) -> Execution:
        """Do as `run`, without blocking the event loop."""
        secrets = secret_texts(arguments, self.entry.sensitive)

        async def attempt(left: float | None) -> Execution:
            full = self._full()
            if full is not None:
                return full
            execution = await arun(self.function, self._own(arguments), left, secrets, self._late)
            return self._results.held(self._believed(execution), secrets)

        return self._said(await aretried(attempt, self.attempts, self.timeout))

    def _full(self) -> Execution | None:
        why = self._late.why_full()
        return unavailable(self.entry.name, why) if why else None

    # A function that says so in the middle of its work may have had an effect. A program is believed: its exit code, or
    # that it is not there, says that nothing was done.
    def _believed(self, execution: Execution) -> Execution:
        failure = execution.failure
        if failure is None or execution.started or isinstance(self.function, CliTool) or not self.entry.has_effects:
            return execution
        if failure.details.get("effect") == "none":
            return execution
        details = {"effect": "unknown", **failure.details}
        return execution._replace(failure=Failure(failure.code, failure.message, details), started=True)

    # Another attempt gets what was decided, whatever the one before did with it.
    def _own(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return deepcopy(dict(arguments)) if self.attempts > 1 else arguments

    # The last attempt knows only what the others had left of the time.
    def _said(self, execution: Execution) -> Execution:
        if execution.failure is None or execution.failure.code is not FailureCode.TOOL_TIMEOUT:
            return execution
        return execution._replace(failure=timed_out(self.timeout).failure)


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()  # a function written in C may not say
    return frozenset(one.name for one in parameters if one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD})
