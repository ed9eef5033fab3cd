"""Tools for CrewAI whose calls are decided, and a hook that blocks all other tools of the process.

CrewAI continues a call if its hook fails, returns cached results without calling the tool, and runs a tool up to five
times if it raises. So each guarded tool itself decides its calls, and neither caches results nor raises errors. CrewAI
cannot pause, so a held call is answered with text that names its approval, and is made again in a later run.
"""

import logging
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from pydantic import PrivateAttr
from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.installed import extra
from pdp.pep import Pep

with extra("crewai"):
    from crewai.hooks import HookAborted, register_before_tool_call_hook, unregister_before_tool_call_hook
    from crewai.tools import BaseTool
    from crewai.tools.tool_failure import ToolExecutionFailedError, ToolFailure, ToolFailureReason
    from crewai.utilities.string_utils import sanitize_tool_name


_CONTROL: Final = (HookAborted, ToolExecutionFailedError)

_log = logging.getLogger("pdp.adapters")
_announced: ContextVar[list[Any] | None] = ContextVar("pdp_crewai_announced", default=None)


class CrewAiGuard:
    """Makes tools whose calls are decided. While a guard is open, agents of this process run no unguarded tool.

    If a tool needs an idempotency key, the key is derived from run and arguments. After a grant, kick the crew off
    again. A coworker's calls are decided under the coworker's role. A crew cannot cancel its tools, because they run in
    threads.

    Args:
        pep: decides the calls.
        session: one session, or a function of CrewAI's `ToolCallHookContext` (`agent`, `task`, `crew`; the model wrote
            `tool_input`), or of None if no agent makes the call. Set a `run_id`, because an approval is valid for one
            run, and the id of a crew changes.
        unguarded: names of tools that run without a decision, as CrewAI spells them, such as
            `delegate_work_to_coworker`.

    Raises:
        UsageError: see `ToolGuard`.

    Example::

        guard = CrewAiGuard(pep, session=lambda call: {"claims": OFFICERS[call.crew.name], "run_id": call.crew.name})
        officer = Agent(role="payments", tools=guard.tools([initiate_wire]), **described)
    """

    def __init__(self, pep: Pep, session: SessionSource, *, unguarded: Collection[str] = ()) -> None:
        self._guard, self._lists = ToolGuard(pep, session), not callable(session)
        self._unguarded = frozenset(unguarded)
        register_before_tool_call_hook(self._before_tool_call)

    def close(self) -> None:
        """Remove the hook that blocks unguarded tools."""
        unregister_before_tool_call_hook(self._before_tool_call)

    def tools(self, tools: Sequence[BaseTool]) -> list[BaseTool]:
        """Return guarded tools. If one session serves all calls, tools that this session can never use are left out.

        Raises:
            UsageError: a tool differs from the manifest, or two tools have the same name.
        """
        named = {_name(tool): tool for tool in tools}
        if len(named) < len(tools):
            raise UsageError("two tools have the same name", hint="rename one; CrewAI compares names in lower case")
        self._guard.check({name: tool.args_schema.model_json_schema() for name, tool in named.items()})
        shown = self._guard.visible(named) if self._lists else named
        return [_guarded(self._guard, name, tool) for name, tool in named.items() if name in shown]

    def _before_tool_call(self, context: Any) -> bool | None:
        try:
            _announced.set([context])  # The list is shared, so a tool in another thread can empty it.
            executor = getattr(context.agent, "agent_executor", None)
            # If the model writes calls as text, CrewAI shows the last tool of a name here, but runs the first.
            named = [each for each in getattr(executor, "tools", None) or () if _name(each) == context.tool_name]
            inner = [getattr(each, "_original_tool", None) for each in (context.tool, *named)]
            runs = all(isinstance(each, _GuardedTool) for each in inner) or context.tool_name in self._unguarded
        except Exception:  # noqa: BLE001 - after an error, CrewAI would run the tool
            _log.exception("could not inspect a call, so the call is blocked")
            runs = False
        return None if runs else False


_spelt = lru_cache(sanitize_tool_name)


def _name(tool: Any) -> str:
    return str(_spelt(tool.name))


class _GuardedTool(BaseTool):  # type: ignore[misc] # CrewAI is not installed where mypy runs
    _guard: ToolGuard = PrivateAttr()
    _declared: str = PrivateAttr()
    _inner: BaseTool = PrivateAttr()

    def _run(self, **given: Any) -> Any:
        announced = (_announced.get() or [None]).pop()
        context = announced if getattr(getattr(announced, "tool", None), "_original_tool", None) is self else None
        fields = self.args_schema.model_fields
        arguments = {
            name: value
            for name, value in self.args_schema.model_validate(given).model_dump(mode="json").items()
            # CrewAI sets absent arguments to null, so these are removed.
            if value is not None or fields[name].default is not None
        }
        role = getattr(getattr(context, "agent", None), "role", None)
        call = FrameworkCall(self._declared, arguments, None, context, role, pauses=False)
        outcome = self._guard.call(call, self._ran, to_jsonable_python)
        if isinstance(outcome.error, _CONTROL):
            raise outcome.error
        if outcome.is_error:
            failed = outcome.kind is OutcomeKind.FAILED
            reason = ToolFailureReason.EXCEPTION if failed else ToolFailureReason.TOOL_REPORTED
            return ToolFailure(message=outcome.text, reason=reason)
        return outcome.text if outcome.own is None else outcome.own

    def _ran(self, arguments: dict[str, Any]) -> Any:
        # CrewAI counts the uses of the guarded tool, so the count of the inner tool is reset.
        self._inner.reset_usage_count()
        result = self._inner.run(**arguments)
        if isinstance(result, ToolFailure):
            raise ToolError(result.as_agent_message())
        return result


def _guarded(guard: ToolGuard, name: str, tool: BaseTool) -> _GuardedTool:
    made = _GuardedTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.args_schema,
        result_schema=tool.result_schema,
        result_as_answer=tool.result_as_answer,
        max_usage_count=tool.max_usage_count,
        tool_failure_policy=tool.tool_failure_policy,
        cache_function=_never,
    )
    made._guard, made._declared, made._inner = guard, name, tool  # noqa: SLF001 - the class is defined here
    return made


def _never(*_: Any) -> bool:
    return False
