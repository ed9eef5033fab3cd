"""Strands Agents: a plugin whose middleware runs a tool inside its decision.

`Agent(..., plugins=[..., StrandsPlugin(pep, session)])`, each agent its own: one that is another's tool, or in a swarm
or graph, too. Middleware is asked after all hooks, and the last to be registered stands next to the tool.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import orjson
from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import FrameworkCall, ToolGuard
from pdp.adapters.guard.outcome import OutcomeKind
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.installed import extra

with extra("strands"):
    from strands import Agent
    from strands.interrupt import InterruptException
    from strands.interventions.actions import default_evaluate
    from strands.middleware import ExecuteToolStage, InvokeModelStage, ToolResultEvent
    from strands.plugins import Plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pdp.adapters.guard.guard import SessionSource
    from pdp.pep import Pep

_APPROVAL: Final = "pdp"
_UNASKED: Final = object()
# What only moves the run on: to another agent of a swarm, whose calls are decided, or to its last answer.
_CONTROL_FLOW: Final = frozenset((
    "strands.multiagent.swarm.Swarm._create_handoff_tool.<locals>.handoff_to_agent",
    "strands.tools.structured_output.structured_output_tool.StructuredOutputTool",
))  # fmt: skip
# The application's state and the run in which a tool runs: an agent that it starts is handed neither by Strands.
_outer: ContextVar[tuple[dict[str, Any], str] | None] = ContextVar("pdp_strands_outer", default=None)
_guarded: WeakSet[Any] = WeakSet()


class StrandsPlugin(Plugin):
    """Decides the calls of all tools of an agent, also those that the application makes as `agent.tool.NAME(...)`.

    `session` is one session, or a function of Strands' `ExecuteToolContext` (of a list, its `InvokeModelContext`):
    `invocation_state` is what the application passed to the agent, or to the one above it; it is empty in a call of the
    application's own. `agent.state` and `messages` are also written by tools and models.

    Raises:
        UsageError: as of `ToolGuard`; from `Agent(...)`, or ending a run: a tool is not as its manifest says, or an
            agent that is a tool has no plugin of its own.
    """

    name = "pdp"

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__()
        self._guard = ToolGuard(pep, session)

    def init_agent(self, agent: Agent) -> None:
        """Hold the agent's tools against the manifest, and stand between it and them."""
        _guarded.add(agent)
        self._check(agent, agent.tool_registry.get_all_tool_specs())
        agent.add_middleware(InvokeModelStage.Input, self._listed)
        agent.add_middleware(ExecuteToolStage, self._executed)

    def _check(self, agent: Agent, specs: Iterable[Any]) -> None:
        for name, tool in agent.tool_registry.registry.items():
            if isinstance(below := getattr(tool, "agent", None), Agent) and below not in _guarded:
                raise UsageError(f"tool {name} is an agent without a StrandsPlugin, whose calls nobody decides")
        self._guard.check({spec["name"]: spec["inputSchema"]["json"] for spec in specs})

    async def _listed(self, context: Any) -> Any:
        """Show the model what its caller can ever use."""
        self._check(context.agent, context.tool_specs)
        registry = context.agent.tool_registry
        tools = {**registry.registry, **registry.dynamic_tools}
        names = {spec["name"] for spec in context.tool_specs}
        visible = await self._guard.avisible(names, _trusted(context), context.agent.name)
        visible |= {name for name in names if _moves_on(tools.get(name))}
        return context.replace(tool_specs=[spec for spec in context.tool_specs if spec["name"] in visible])

    async def _executed(self, context: Any, next_fn: Any) -> AsyncIterator[Any]:
        """Decide the call, and run the tool on ALLOW."""
        if _moves_on(context.tool):
            async for event in next_fn(context):
                yield event
            return
        answer = context.interrupt(_APPROVAL, response=_UNASKED).response
        if answer is not _UNASKED and not default_evaluate(answer):
            yield _told(context, "a person rejected this call, and nothing ran", is_error=True)
            return
        trusted, events = _trusted(context), list[Any]()
        run_id = (_outer.get() or ({}, context.agent.session_id))[1]

        async def run(decided: dict[str, Any]) -> Any:
            token = _outer.set((trusted.invocation_state, run_id))
            try:
                async for event in next_fn(context.replace(tool_use={**context.tool_use, "input": decided})):
                    events.append(event)
            finally:
                _outer.reset(token)
            return _result_of(events)

        # A hook may have chosen another tool than the one that is named.
        name = context.tool_use["name"] if context.tool is None else context.tool.tool_name
        call_id, agent = context.tool_use["toolUseId"], context.agent
        call = FrameworkCall(name, context.tool_use["input"], call_id, trusted, agent.name, run_id)
        outcome = await self._guard.acall(call, run, _as_json)
        if outcome.kind is OutcomeKind.HELD and answer is _UNASKED and _pauses(context):
            context.interrupt(_APPROVAL, reason=outcome.pending)
        if isinstance(outcome.error, InterruptException) and "tool_interrupt_event" not in (events or [()])[-1]:
            raise outcome.error
        if outcome.own is not None or isinstance(outcome.error, InterruptException):
            for event in events:
                yield event
        else:
            yield _told(context, outcome.text, is_error=outcome.is_error)


def _pauses(context: Any) -> bool:
    """Whether the run of the call can pause: a call of the application's own cannot, nor can a bidirectional agent."""
    return isinstance(context.agent, Agent) and "event_loop_cycle_id" in context.invocation_state


def _trusted(context: Any) -> Any:
    """Return the context with what the application passed: to this agent, or to the one that runs it as a tool."""
    # The state of a call of the application's own is the call's arguments.
    given = context.invocation_state if "event_loop_cycle_id" in context.invocation_state else {}
    return context.replace(invocation_state={**(_outer.get() or ({}, ""))[0], **given})


def _moves_on(tool: Any) -> bool:
    own = tool if hasattr(tool, "__wrapped__") else type(tool)
    return f"{own.__module__}.{own.__qualname__}" in _CONTROL_FLOW


def _result_of(events: list[Any]) -> Any:
    """Return a tool's result. What it raised, or asked its person for, is raised."""
    if paused := [event for event in events if "tool_interrupt_event" in event]:
        raise InterruptException(paused[0].interrupts[0])
    event = [event for event in events if isinstance(event, ToolResultEvent)][-1]
    if event.exception is not None:
        raise event.exception
    if event.tool_result["status"] == "error":
        raise ToolError(str(_as_json(event)))
    return event


def _as_json(event: Any) -> Any:
    """Return the JSON that a tool gave; Strands writes a function's object or list as text."""
    blocks = to_jsonable_python(event.tool_result["content"], bytes_mode="base64", fallback=str)
    value = next(iter(blocks[0].values())) if len(blocks) == 1 else blocks
    try:
        return orjson.loads(value) if isinstance(value, str) and value[:1] in "{[" else value
    except orjson.JSONDecodeError:
        return value


def _told(context: Any, text: str, *, is_error: bool) -> ToolResultEvent:
    status = "error" if is_error else "success"
    return ToolResultEvent({"toolUseId": context.tool_use["toolUseId"], "status": status, "content": [{"text": text}]})
