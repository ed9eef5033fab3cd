"""CrewAI: tools that decide each call of theirs, and a hook that stops the tools of the process which do not.

CrewAI goes on with a call when its hook fails, caches results before its tools are asked, and runs a tool that raises
up to five times. So the decision is in the tool, which caches nothing and raises nothing. There is no pause: a held
call is answered with the text that names its approval, and is made again in a later run.
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
    """Makes tools of which each call is decided. Once there is one, no other tool runs for an agent of this process.

    Args:
        pep: who decides.
        session: whose calls these are. A function gets CrewAI's `ToolCallHookContext` (`agent`, `task`, `crew`; its
            `tool_input` is the model's), or None where no agent calls. It states the `run_id`: an id of a crew does not
            last, and a held call is granted for its run.
        unguarded: names of tools that run without a decision, as CrewAI spells them, such as
            `delegate_work_to_coworker`.
    """

    def __init__(self, pep: Pep, session: SessionSource, *, unguarded: Collection[str] = ()) -> None:
        self._guard, self._lists = ToolGuard(pep, session), not callable(session)
        self._unguarded = frozenset(unguarded)
        register_before_tool_call_hook(self._asked)

    def close(self) -> None:
        """Let the tools that are not guarded run again."""
        unregister_before_tool_call_hook(self._asked)

    def tools(self, tools: Sequence[BaseTool]) -> list[BaseTool]:
        """Return the tools, guarded; under one session for all, those that its caller can use at all.

        UsageError: one is not as the manifest declares it, or two have one name.
        """
        named = {_name(tool): tool for tool in tools}
        if len(named) < len(tools):
            raise UsageError("two tools have one name", hint="rename one; CrewAI spells names in small letters")
        self._guard.check({name: tool.args_schema.model_json_schema() for name, tool in named.items()})
        shown = self._guard.visible(named) if self._lists else named
        return [_guarded(self._guard, name, tool) for name, tool in named.items() if name in shown]

    def _asked(self, context: Any) -> bool | None:
        """Be the framework's hook: the call goes on unless this is False."""
        try:
            _announced.set([context])  # a list, so that whoever takes it takes it from all threads
            executor = getattr(context.agent, "agent_executor", None)
            # Where calls stand in the model's text, the last tool of a name is shown here, and the first one runs.
            named = [each for each in getattr(executor, "tools", None) or () if _name(each) == context.tool_name]
            inner = [getattr(each, "_original_tool", None) for each in (context.tool, *named)]
            runs = all(isinstance(each, _GuardedTool) for each in inner) or context.tool_name in self._unguarded
        except Exception:  # noqa: BLE001 - the framework would go on
            _log.exception("a call could not be looked at, and does not run")
            runs = False
        return None if runs else False


_spelt = lru_cache(sanitize_tool_name)


def _name(tool: Any) -> str:
    return str(_spelt(tool.name))


class _GuardedTool(BaseTool):  # type: ignore[misc] # the framework is not installed where types are checked
    _guard: ToolGuard = PrivateAttr()
    _declared: str = PrivateAttr()
    _inner: BaseTool = PrivateAttr()

    def _run(self, **given: Any) -> Any:
        told = (_announced.get() or [None]).pop()
        context = told if getattr(getattr(told, "tool", None), "_original_tool", None) is self else None
        fields = self.args_schema.model_fields
        arguments = {
            name: value
            for name, value in self.args_schema.model_validate(given).model_dump(mode="json").items()
            if value is not None or fields[name].default is not None  # of these the framework makes null
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
        self._inner.reset_usage_count()  # the limit is this tool's, which the framework counts anew for each run
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
    made._guard, made._declared, made._inner = guard, name, tool  # noqa: SLF001 - its own class is here
    return made


def _never(*_: Any) -> bool:
    return False
