"""Guarded agents for the OpenAI Agents SDK. The agents in their handoffs are guarded as well.

A held call interrupts the run, like a tool that needs approval. Tools that are not function tools raise `UsageError`.
"""

from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.installed import extra
from pdp.json import canonical
from pdp.pep import Pep

with extra("openai-agents"):
    from agents import Agent, FunctionTool, Handoff
    from agents import tool as sdk
    from agents.util._approvals import evaluate_function_tool_approval


def guarded_openai_agent(agent: Any, pep: Pep, session: SessionSource) -> "GuardedOpenAiAgent":
    """Return a guarded copy of the agent and of the agents in its `handoffs`.

    The SDK asks for approval before it calls a tool, so each call is decided twice. `await item.agent.pending(item,
    context)` describes an interruption; after `state.approve(item)` the call is decided again. Keep the `RunState` on
    the server. Use `RunConfig(tool_not_found_behavior="return_error_to_model")`, or a call of a hidden tool ends the
    run. In strict mode, a model sends null for an argument that it leaves out, so the manifest's schema must allow
    null.

    Args:
        agent: an `Agent`. Guard an agent before you call `as_tool` or `handoff` for the agent.
        pep: decides the calls.
        session: one session, or a function of the `context` that `Runner.run` gets. Set a `run_id`, because the SDK has
            no id that outlasts a pause. By default, the session's `agent` is the agent's name.

    Raises:
        UsageError: a tool differs from the manifest, or a tool or agent would run without a decision.

    Example::

        agent = guarded_openai_agent(Agent(name="payments", tools=[initiate_wire]), pep, session)
    """
    return _guarded_agent(agent, ToolGuard(pep, session), {})


def _guarded_agent(agent: Any, guard: ToolGuard, done: "dict[int, GuardedOpenAiAgent]") -> "GuardedOpenAiAgent":
    if isinstance(agent, GuardedOpenAiAgent):
        return agent
    if type(agent) is not Agent:
        raise UsageError(f"cannot guard a {type(agent).__name__}: only agents of the class Agent itself can be guarded")
    if id(agent) not in done:
        values = {each.name: getattr(agent, each.name) for each in fields(agent) if each.init}
        done[id(agent)] = made = GuardedOpenAiAgent(**{**values, "handoffs": [], "guard": guard})
        made.handoffs = [_guarded_agent(to, guard, done) if isinstance(to, Agent) else to for to in agent.handoffs]
        made.check()
    return done[id(agent)]


@dataclass
class GuardedOpenAiAgent(Agent):  # type: ignore[misc]
    """An `Agent` whose tools run after a decision, and on ALLOW only. `guarded_openai_agent` makes such agents."""

    guard: Any = field(kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Replace the agent's tools with guarded tools."""
        super().__post_init__()
        self.tools = [self._guarded(tool) for tool in self.tools]  # type: ignore[has-type]

    async def get_mcp_tools(self, run_context: Any) -> list[Any]:
        """Return the tools of the agent's MCP servers as guarded tools."""
        return [self._guarded(tool, in_run=True) for tool in await super().get_mcp_tools(run_context)]

    async def get_all_tools(self, run_context: Any) -> list[Any]:
        """Return the tools that the caller can ever use."""
        self.check()
        tools = await super().get_all_tools(run_context)
        shown = await self.guard.avisible([tool.qualified_name for tool in tools], run_context.context, self.name)
        return [tool for tool in tools if tool.qualified_name in shown]

    async def pending(self, item: Any, context: Any = None) -> dict[str, Any] | None:
        """Return the `CallOutcome.pending` of an interruption, or None if a rule of the application caused it."""
        call = FrameworkCall(item.qualified_name, item.arguments, item.call_id, context, self.name)
        outcome: CallOutcome = await self.guard.aask(call)
        return outcome.pending

    def check(self) -> None:
        """Raise `UsageError` if a new tool, a prompt's tool or an unguarded agent would run without a decision."""
        if self.prompt is not None:
            raise UsageError(
                f"agent {self.name!r}: its prompt is stored at the provider and may add tools: remove `prompt`"
            )
        for tool in self.tools:
            if not isinstance(getattr(tool, "on_invoke_tool", None), _DecidedTool):
                raise UsageError(f"agent {self.name!r}: {tool.name} was added after the agent was guarded")
        for to in self.handoffs:
            found = to._agent_ref and to._agent_ref() if isinstance(to, Handoff) else to  # noqa: SLF001
            if not isinstance(found, GuardedOpenAiAgent):
                raise UsageError(f"agent {self.name!r}: a handoff leads to an unguarded agent: guard that agent first")
            if isinstance(to, Handoff) and to.input_json_schema.get("properties"):
                raise UsageError(f"agent {self.name!r}: {to.tool_name} takes arguments, which bypass the policy")

    def _guarded(self, tool: Any, *, in_run: bool = False) -> Any:
        if not isinstance(tool, FunctionTool):
            raise UsageError(
                f"agent {self.name!r}: {type(tool).__name__} is not a function tool, so it runs without a decision"
            )
        if isinstance(tool.on_invoke_tool, _DecidedTool):
            tool = tool.on_invoke_tool.tool
        if tool._is_agent_tool and not isinstance(tool._agent_instance, GuardedOpenAiAgent):  # noqa: SLF001
            raise UsageError(f"agent {self.name!r}: {tool.name} runs an unguarded agent: guard that agent first")
        schema = tool.params_json_schema
        self.guard.check({tool.qualified_name: _relaxed(schema) if tool.strict_json_schema else schema}, in_run=in_run)
        decided, guarded = _DecidedTool(tool, self.name, self.guard), copy(tool)
        guarded.on_invoke_tool, guarded.needs_approval = decided, decided.needs_approval
        return guarded


def _relaxed(schema: Any) -> Any:
    """Return the schema without `required`, because strict mode lists optional arguments as required too."""
    if isinstance(schema, list):
        return [_relaxed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _relaxed(part) for name, part in schema.items() if name != "required" or not isinstance(part, list)}


class _DecidedTool:
    def __init__(self, tool: Any, agent: str, guard: ToolGuard) -> None:
        self.tool, self._agent, self._guard = tool, agent, guard
        # The guard must see the tool's exceptions, so the SDK must not turn them into texts.
        self._inner = sdk.set_function_tool_failure_error_function(copy(tool), None)

    async def __call__(self, context: Any, arguments: str) -> Any:
        async def run(decided: dict[str, Any]) -> Any:
            context.tool_arguments = text = canonical(decided).decode()
            return await self._inner.on_invoke_tool(context, text)

        outcome = await self._guard.acall(self._call(context, arguments, context.tool_call_id), run)
        if outcome.error is not None and sdk.resolve_function_tool_failure_error_function(self.tool, context) is None:
            raise outcome.error  # Without a failure handler, the application wants the error to end the run.
        if outcome.own is None:
            setattr(context, sdk._DEFAULT_FAILURE_HANDLED_ATTR, True)  # noqa: SLF001 - the text has no output schema
        return outcome.text if outcome.own is None else outcome.own

    async def needs_approval(self, context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        outcome = await self._guard.aask(self._call(context, arguments, call_id))
        if outcome.kind is not OutcomeKind.RAN:
            return outcome.kind is OutcomeKind.HELD
        # The approval rule that the application set for the tool still applies.
        own = await evaluate_function_tool_approval(self.tool, context, canonical(arguments).decode(), call_id)
        return bool(own.outcome != "invoke")

    def _call(self, context: Any, arguments: Any, call_id: str) -> FrameworkCall:
        return FrameworkCall(self.tool.qualified_name, arguments, call_id, context.context, self._agent)
