"""What runs the tools of an enforcement point: functions, programs, and what they get beside their arguments."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pdp.execution.failures import ToolError
from pdp.execution.run import unavailable
from pdp.execution.runner import ToolRunner
from pdp.proposal import FailureCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pdp.contract.compiled import CompiledTool
    from pdp.contract.registry.registry import Registry
    from pdp.proposal import Execution
    from pdp.session import Session


class Tools:
    """The functions by the name of their tool; each is made ready for running when it is first called.

    Args:
        functions: the functions.
        registry: where else functions are bound, with their state and config; it is told how runs end.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], registry: Registry | None = None) -> None:
        self._functions = dict(functions)
        self._registry = registry
        self._lock = threading.Lock()
        self._runners: dict[str, ToolRunner] = {}

    def __contains__(self, name: str) -> bool:
        return self._function(name) is not None

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Let `function` run the tool `name`."""
        self._functions[name] = function

    def replaced_by(self, functions: Mapping[str, Callable[..., Any]] | None) -> Tools:
        """Return tools with other functions; the same ones when there are none to replace them with."""
        return Tools(self._functions if functions is None else functions, self._registry)

    def runner(self, tool: CompiledTool) -> ToolRunner | None:
        """Return what runs the tool; None when nothing does.

        Raises:
            UsageError: its program or its result's schema cannot be used.
        """
        name = tool.entry.name
        function = self._function(name)
        found = self._runners.get(name)
        if found is not None and (function is None or found.function is function):
            return found
        if function is None and tool.entry.type != "cli":
            return None
        with self._lock:
            made = self._runners[name] = ToolRunner(tool.entry, function)
        return made

    def refused(self, tool: CompiledTool, runner: ToolRunner | None, arguments: Mapping[str, Any]) -> Execution | None:
        """Return the failure of a call that is not to be run, before anything is used up for it; None: run it.

        Something that the registry's tool needs is not there, or an argument would fill a parameter that is not the
        model's.
        """
        name = tool.entry.name
        lacking = self._registry.lacking(name) if self._registry is not None else ""
        if lacking:
            return unavailable(name, lacking)
        return runner.refused(arguments) if runner is not None else None

    def inputs(self, tool: CompiledTool, session: Session, config: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the tool's function gets of state and config, by parameter."""
        if self._registry is None:
            return {}
        return self._registry.inputs(tool.entry.name, session.state, config or {})

    def note(self, name: str, execution: Execution) -> None:
        """Tell the registry how a run ended: whether the tool itself is out of order."""
        if self._registry is not None:
            self._registry.note_run(name, failed=_out_of_order(execution))

    def _function(self, name: str) -> Callable[..., Any] | None:
        function = self._functions.get(name)
        if function is None and self._registry is not None and name in self._registry:
            function = self._registry.function(name)
        return function


def _out_of_order(execution: Execution) -> bool:
    """Whether the tool took too long, was not there, or broke: what it says in its own words is an answer."""
    failure, error = execution.failure, execution.error
    if failure is None:
        return False
    if failure.code is not FailureCode.TOOL_EXECUTION_FAILED:
        return True
    return error is not None and not isinstance(error, ToolError)
