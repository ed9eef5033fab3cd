"""Tools for LlamaIndex whose calls are decided.

LlamaIndex has no hook for tool calls, so the tool itself decides, also in an `AgentWorkflow`, and in a `CodeActAgent`,
which calls the tool's function.
"""

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.decision import new_id
from pdp.execution.runner import set_within
from pdp.installed import extra
from pdp.pep import Pep

with extra("llama-index"):
    from llama_index.core.agent.workflow import ToolCall
    from llama_index.core.tools import BaseTool, FunctionTool, ToolOutput, adapt_to_async_tool
    from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

    # Only these two modules know for which call a tool runs, and which exception pauses a step.
    from workflows.runtime.types.results import StepWorkerStateContextVar, WaitingForEvent


_inside: ContextVar[bool] = ContextVar("pdp_llama_index_inside", default=False)


def guarded_llama_tools(
    tools: Sequence[BaseTool | Callable[..., Any]], pep: Pep, session: SessionSource, agent: str | None = None
) -> "list[LlamaIndexTool]":
    """Return guarded tools, without those that the manifest lacks or that the session can never use.

    A held call in an agent that runs in a tool, or in the code of a `CodeActAgent`, cannot pause: it gets a text. Such
    code can call more than the tools, so run it outside of your process. Guard tools before you index them for a
    retriever.

    Args:
        tools: functions, or tools of any class.
        pep: decides the calls.
        session: one session, or a function of the state of the workflow's `Context`: a dict that the application fills
            with `ctx.store.set`. With a function, all tools of the manifest are returned, as no caller is known yet.
        agent: the agent's name; by default, the name of the agent that an `AgentWorkflow` currently runs.

    Raises:
        UsageError: see `ToolGuard`; or a tool differs from the manifest.

    Example::

        agent = FunctionAgent(name="payments", llm=llm, tools=guarded_llama_tools([initiate_wire], pep, session))
    """
    guard = ToolGuard(pep, session)
    made = [each if isinstance(each, BaseTool) else FunctionTool.from_defaults(each) for each in tools]
    schemas = {tool.metadata.get_name(): tool.metadata.get_parameters_dict() for tool in made}
    guard.check(schemas)
    shown = guard.manifest.tools if callable(session) else guard.visible(schemas, agent=agent)
    return [LlamaIndexTool(tool, guard, agent) for tool in made if tool.metadata.get_name() in shown]


class LlamaIndexTool(FunctionTool):
    """A tool whose calls are decided, made by `guarded_llama_tools`.

    A held call pauses its run with an `InputRequiredEvent` that carries `CallOutcome.pending`. After
    `HumanResponseEvent(approval_id=..., approved=True)` the call is decided again; any other answer rejects the call.
    """

    def __init__(self, tool: BaseTool, guard: ToolGuard, agent: str | None) -> None:
        self._inner, self._guard, self._agent = adapt_to_async_tool(tool), guard, agent
        body = tool.real_fn if isinstance(tool, FunctionTool) else self._inner.acall

        fn = wraps(body)(lambda *args, **kwargs: _returned(self.call(*args, **kwargs)))

        @wraps(body)
        async def async_fn(*args: Any, **kwargs: Any) -> Any:
            return _returned(await self.acall(*args, **kwargs))

        super().__init__(None if inspect.iscoroutinefunction(body) else fn, tool.metadata, async_fn)

    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """Decide and run a call outside of a workflow. A held call cannot pause there."""
        own, given = self._read(args, kwargs)
        call = FrameworkCall(self.metadata.get_name(), given, agent=self._agent)
        return self._output(self._guard.call(call, lambda decided: self._inner.call(**decided, **own), _json), given)

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """Decide and run a call of a workflow, or pause the workflow's run until the approval is decided."""
        own, arguments = self._read(args, kwargs)
        name, step = self.metadata.get_name(), StepWorkerStateContextVar.get(None)
        context: Any = None if step is None else Context.get_step_context()
        event = step.event if step is not None and isinstance(step.event, ToolCall) else None
        call_id = event.tool_id if event is not None and event.tool_name == name else None
        state = {} if context is None else dict(await context.store.get_state())
        kept = {} if event is None else state.get("pdp") or await _keep(context)
        waiter, pauses = f"call:{call_id}:{arguments!r}", call_id is not None and not _inside.get()
        held = kept.get(waiter) if pauses else None
        if held is not None:
            answer = await _answer(context, waiter, {"approval_id": held})
            await _keep(context, **{waiter: None})
            if answer.get("approval_id", None) == held and answer.get("approved", None) is not True:
                return self._output(
                    CallOutcome(OutcomeKind.DENIED, f"{name} was rejected, so the tool did not run"), arguments
                )

        async def run(decided: dict[str, Any]) -> Any:
            with set_within(_inside, True):
                return await self._inner.acall(**decided, **own)

        agent = self._agent or state.get("current_agent_name")
        call = FrameworkCall(name, arguments, call_id, state, agent, kept.get("run_id"), pauses)
        outcome = await self._guard.acall(call, run, _json)
        if (pending := outcome.pending) is not None and pauses and held is None:
            await _keep(context, **{waiter: pending["approval_id"]})
            await _answer(context, waiter, pending)
        return self._output(outcome, arguments)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        order = self.metadata.get_parameters_dict()["properties"] if args else ()
        named = dict(zip(order, args, strict=False)) | kwargs
        # The framework, not the model, fills the context parameter, so it is not an argument.
        return {name: named.pop(name) for name in [self.ctx_param_name] if name in named}, named

    def _output(self, outcome: CallOutcome, arguments: dict[str, Any]) -> ToolOutput:
        if isinstance(outcome.error, WaitingForEvent):
            raise outcome.error
        raw, name = outcome.text if outcome.value is None else outcome.value, self.metadata.get_name()
        return outcome.own or ToolOutput(name, outcome.text, None, {"kwargs": arguments}, raw, outcome.is_error)


async def _keep(context: Any, **changes: str | None) -> dict[str, Any]:
    """Store the run's id and its pending approvals in the run's state, so that another process can resume the run."""
    async with context.store.edit_state() as state:
        state["pdp"] = {"run_id": new_id(), **(state.get("pdp") or {}), **changes}
        return dict(state["pdp"])


async def _answer(context: Any, waiter: str, pending: dict[str, Any]) -> Any:
    """Return the answer to a pause, or raise the exception that pauses the step. An answer runs the step again."""
    only = {"approval_id": pending["approval_id"]}
    return await context.wait_for_event(HumanResponseEvent, InputRequiredEvent(**pending), waiter, only, timeout=None)


def _json(output: Any) -> Any:
    raw = output.raw_output
    return to_jsonable_python(raw, fallback=str) if isinstance(raw, str | int | float | list | dict) else output.content


def _returned(output: Any) -> Any:
    if output.is_error:
        raise RuntimeError(output.content)
    return output.raw_output
