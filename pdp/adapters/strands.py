"""A plugin for Strands Agents whose middleware decides each tool call.

Strands calls middleware after all hooks. Register the plugin last, because the last middleware calls the tool.
"""

from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakSet

import orjson
from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.execution.runner import set_within
from pdp.installed import extra
from pdp.pep import Pep

with extra("strands"):
    from strands import Agent
    from strands.interrupt import InterruptException
    from strands.interventions.actions import default_evaluate
    from strands.middleware import ExecuteToolContext, ExecuteToolStage, InvokeModelStage, ToolResultEvent
    from strands.plugins import Plugin


_UNASKED: Final = object()
_REJECTED: Final = CallOutcome(OutcomeKind.DENIED, "a person rejected this call, so the tool did not run")
# These tools only end with an answer or transfer control to another agent of a swarm, whose calls are decided.
_CONTROL_FLOW: Final = frozenset((
    "strands.multiagent.swarm.Swarm._create_handoff_tool.<locals>.handoff_to_agent",
    "strands.tools.structured_output.structured_output_tool.StructuredOutputTool",
))  # fmt: skip
# The application's state and the run of the tool. Strands does not pass them to an agent that the tool starts.
_outer: ContextVar[tuple[Any, str | None]] = ContextVar("pdp_strands_outer", default=(MappingProxyType({}), None))
_guarded: WeakSet[Any] = WeakSet()


class StrandsPlugin(Plugin):
    """Decides the calls of all tools of an agent, including the application's own `agent.tool.NAME(...)`.

    Every agent needs a separate plugin, even an agent that is a tool of another agent, or is in a swarm or graph.

    A held call is an interrupt named `pdp`, whose `reason` is the approval. The responses `True`, `"y"` and `"yes"`
    have the call decided again, and any other rejects it. Your own `agent.tool.NAME(...)` and background tools cannot
    pause.

    Register other wrappers of `ExecuteToolStage` before the plugin, or calls are denied. Hand-offs of a swarm are not
    decided. State the `inputSchema`, because Strands declares arguments of any type as strings.

    Args:
        pep: decides the calls.
        session: one session, or a function of Strands' `ExecuteToolContext` (`InvokeModelContext` when tools are
            listed). Its `invocation_state` is what the application passed to the agent or to the outer agent; empty if
            the application itself calls a tool. Tools can write `agent.state` and `messages`, so trust neither.

    Raises:
        UsageError: see `ToolGuard`. `Agent(...)` raises it if a tool differs from the manifest. `Agent(...)` or a run
            raises it if a tool is an agent without a plugin.

    Example::

        agent = Agent(model=model, tools=tools, plugins=[StrandsPlugin(pep, session)])
    """

    name = "pdp"

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__()
        self._guard = ToolGuard(pep, session)

    def init_agent(self, agent: Agent) -> None:
        """Compare the agent's tools with the manifest, and add the middleware that decides the tools' calls."""
        _guarded.add(agent)
        self._check(agent)
        agent.add_middleware(InvokeModelStage.Input, self._listed)
        agent.add_middleware(ExecuteToolStage, self._executed)

    def _check(self, agent: Agent, *, in_run: bool = False) -> None:
        for name, tool in agent.tool_registry.registry.items():
            if isinstance(below := getattr(tool, "agent", None), Agent) and below not in _guarded:
                raise UsageError(f"tool {name} is an agent without a StrandsPlugin: add one to that agent")
            self._guard.check({name: tool.tool_spec["inputSchema"]["json"]}, in_run=in_run)

    async def _listed(self, context: Any) -> Any:
        self._check(context.agent, in_run=True)
        registry, names = context.agent.tool_registry, {spec["name"] for spec in context.tool_specs}
        run_id = _outer.get()[1] or context.agent.session_id
        visible = await self._guard.avisible(names, _trusted(context), context.agent.name, run_id)
        visible |= {name for name, tool in (registry.registry | registry.dynamic_tools).items() if _moves_on(tool)}
        return context.replace(tool_specs=[spec for spec in context.tool_specs if spec["name"] in visible])

    async def _executed(self, context: Any, next_fn: Any) -> Any:
        if _moves_on(context.tool):
            async for event in next_fn(context):
                yield event
            return
        # Calls by the application and calls outside of the event loop cannot pause. A call that still needs approval
        # after a pause is answered with text.
        pauses = type(context) is ExecuteToolContext and "event_loop_cycle_id" in context.invocation_state
        answer = context.interrupt(self.name, response=_UNASKED).response if pauses else True
        trusted, tool, events = _trusted(context), context.tool_use, list[Any]()
        run_id = _outer.get()[1] or context.agent.session_id

        async def run(decided: dict[str, Any]) -> Any:
            with set_within(_outer, (trusted.invocation_state, run_id)):
                async for event in next_fn(context.replace(tool_use={**tool, "input": decided})):
                    events.append(event)
            return _result_of(events)

        # Another hook may have replaced the tool that the model named.
        name = tool["name"] if context.tool is None else context.tool.tool_name
        self._guard.check(
            {} if context.tool is None else {name: context.tool.tool_spec["inputSchema"]["json"]}, in_run=True
        )
        wrappers = context.agent._middleware_registry._handlers[ExecuteToolStage]  # noqa: SLF001 - no public list
        wrapping = [each.handler for each in wrappers if each.phase == "wrap"]
        for later in wrapping[wrapping.index(self._executed) + 1 :]:
            if not later.__module__.startswith("strands."):
                self._guard.leave_out(name, f"{later} was registered after StrandsPlugin: register StrandsPlugin last")
        call = FrameworkCall(name, tool["input"], tool["toolUseId"], trusted, context.agent.name, run_id)
        rejected = answer is not _UNASKED and not default_evaluate(answer)
        outcome = _REJECTED if rejected else await self._guard.acall(call, run, _as_json)
        if outcome.kind is OutcomeKind.HELD and answer is _UNASKED:
            context.interrupt(self.name, reason=outcome.pending)
        asks = isinstance(outcome.error, InterruptException)
        status, content = "error" if outcome.is_error else "success", [{"text": outcome.text}]
        answer_event = ToolResultEvent({"toolUseId": tool["toolUseId"], "status": status, "content": content})
        for event in events if asks or outcome.own is not None else [answer_event]:
            yield event
        if outcome.error and asks and not any("tool_interrupt_event" in event for event in events):
            raise outcome.error


def _trusted(context: Any) -> Any:
    """Return the context with the state that the application passed to this agent, or to the agent that runs it."""
    # If the application itself calls the tool, the state holds the call's arguments and no trusted data.
    given = context.invocation_state if "event_loop_cycle_id" in context.invocation_state else {}
    return context.replace(invocation_state={**_outer.get()[0], **given})


def _moves_on(tool: Any) -> bool:
    own = tool if hasattr(tool, "__wrapped__") else type(tool)
    return f"{own.__module__}.{own.__qualname__}" in _CONTROL_FLOW


def _result_of(events: list[Any]) -> Any:
    """Return a tool's result from its events. Raise the exception or the interrupt that the events report."""
    for event in events:
        if "tool_interrupt_event" in event:
            raise InterruptException(event.interrupts[0])
    result = [event for event in events if isinstance(event, ToolResultEvent)][-1]
    if result.exception is not None or result.tool_result["status"] == "error":
        raise result.exception or ToolError(str(_as_json(result)))
    return result


def _as_json(event: Any) -> Any:
    """Return a tool's result as JSON. Strands writes a function's object or list as text, which is parsed."""
    blocks = to_jsonable_python(event.tool_result["content"], bytes_mode="base64", fallback=str)
    value = next(iter(blocks[0].values())) if len(blocks) == 1 else blocks
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(value) if isinstance(value, str) and value[:1] in "{[" else value
    return value
