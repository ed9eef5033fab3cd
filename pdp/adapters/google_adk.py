"""A plugin for Google's Agent Development Kit that decides each tool call.

ADK takes the answer of a before-tool callback as the tool's result, so the plugin runs the tool itself.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from inspect import isasyncgen, isawaitable
from typing import Any, Final

from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.execution.runner import set_within
from pdp.installed import extra
from pdp.pep import Pep

with extra("google-adk"):
    from google.adk.plugins.base_plugin import BasePlugin
    from google.genai import types


# These tools only end the run or transfer control to another agent, whose calls are decided. ADK starts a task's agent
# when the model asks, even if a callback denies the call. If a later ADK moves a class, its tools are decided like all
# others.
_CONTROL_FLOW: Final = frozenset((
    "google.adk.agents.llm.task._finish_task_tool.FinishTaskTool",
    "google.adk.tools.agent_tool._TaskAgentTool",
    "google.adk.tools.set_model_response_tool.SetModelResponseTool",
    "google.adk.tools.transfer_to_agent_tool.TransferToAgentTool",
))  # fmt: skip
# The id of the outer run. An AgentTool runs its agent in a temporary session, so that session uses this id.
_run_id: ContextVar[str | None] = ContextVar("pdp_adk_run_id", default=None)


class AdkPlugin(BasePlugin):
    """Decides the calls of all tools of a runner, including the agents that run as an `AgentTool`.

    Register this plugin last: it runs the tool itself, so ADK calls no later plugin for the tool.

    A held call asks for a tool confirmation, whose payload is the approval. After `{"confirmed": True}` the call is
    decided again. Live runs, tool nodes of a `Workflow` and agents in an `AgentTool` cannot pause: the model gets a
    text. Remote agents, agents of other classes, and steps such as `transfer_to_agent` are not decided.

    Args:
        pep: decides the calls.
        session: one session, or a function of ADK's `ToolContext` (`CallbackContext` when tools are listed). The
            application sets `user_id`, `session.id` and `run_config`. Tools, and models by `output_key`, can write
            `state`, so do not trust `state`.

    Raises:
        UsageError: see `ToolGuard`. The error ends a run if an agent has a code executor or a tool that the model's
            provider runs, or if an `AgentTool` has no plugins.

    Example::

        app = App(name="payments", root_agent=agent, plugins=[AdkPlugin(pep, session)])
    """

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__(name="pdp")
        self._guard = ToolGuard(pep, session)
        self._seen: dict[str, Any] = {}

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """Compare the agent's tools with the manifest. Raise `UsageError` if a tool would run without a decision."""
        if getattr(agent, "code_executor", None) is not None:
            raise UsageError(
                f"agent {agent.name} has a code executor, which runs without a decision: remove the code executor"
            )
        if hasattr(agent, "canonical_tools"):
            self._check(await agent.canonical_tools(callback_context))

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Show the model only the tools that its caller can ever use."""
        name, tools, groups = callback_context.agent_name, llm_request.tools_dict, llm_request.config.tools or []
        visible = await self._guard.avisible(
            tools.keys(), callback_context, name, _run_id.get() or callback_context.session.id
        )
        visible |= {name for name, tool in tools.items() if _moves_on(tool)}
        for group in groups:
            others = any(value for key, value in group if key != "function_declarations")
            if others or not isinstance(group, types.Tool):
                raise UsageError(
                    f"agent {name} has a tool that the model's provider runs without a decision: remove the tool"
                )
            group.function_declarations = [each for each in group.function_declarations or [] if each.name in visible]
        llm_request.config.tools = [group for group in groups if group.function_declarations] or None

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Decide the call, run the tool on ALLOW, and return the result."""
        if _moves_on(tool):
            return None
        self._check([tool] if self._seen.get(tool.name) is not tool else [])
        context, confirmation = tool_context, tool_context.tool_confirmation
        invocation, run_id = context.get_invocation_context(), _run_id.get() or context.session.id
        own = getattr(invocation.agent, "canonical_before_tool_callbacks", ())
        if (answer := await _answer_of(own, tool=tool, args=tool_args, tool_context=context)) is not None:
            return answer
        if confirmation is not None and not confirmation.confirmed:
            return {"error": "a person rejected this call, so the tool did not run"}

        async def run(decided: dict[str, Any]) -> Any:
            with set_within(_run_id, run_id):
                result = await tool.run_async(args=decided, tool_context=context)
            if isasyncgen(result):
                raise ToolError("tools that stream in a live run are not supported, so the tool did not start")
            return result

        call = FrameworkCall(tool.name, tool_args, context.function_call_id, context, context.agent_name, run_id)
        # A confirmation that the tool itself needs comes before the run, because the result of the call may be stored
        # for replays.
        confirms = confirmation is None and await tool.check_require_confirmation(tool_args, context)
        outcome = await (self._guard.aask(call) if confirms else self._guard.acall(call, run, _as_json))
        if confirms and outcome.kind is OutcomeKind.RAN:
            outcome = CallOutcome(
                OutcomeKind.HELD, "this call waits for a person's confirmation, so the tool did not run"
            )
        # A live run, a run inside a tool, and a call that was already resumed cannot pause, so the model gets a text
        # instead.
        pauses = confirmation is None and invocation.live_request_queue is None and run_id == context.session.id
        if pauses and outcome.kind is OutcomeKind.HELD:
            context.request_confirmation(hint=outcome.text, payload=outcome.pending)
            context.actions.skip_summarization = True
        return _response(outcome)

    def _check(self, tools: Iterable[Any]) -> None:
        for tool in tools:
            if not getattr(tool, "include_plugins", True):
                raise UsageError(f"tool {tool.name} runs its agent without plugins: set include_plugins=True")
            declared = tool._get_declaration()  # noqa: SLF001 - ADK has no public way to a tool's schema
            schema = declared and (declared.parameters_json_schema or declared.parameters)
            if isinstance(schema, types.Schema):
                schema = schema.json_schema.model_dump(mode="json", exclude_none=True)
            if schema and not _moves_on(tool):
                self._guard.check({tool.name: schema}, in_run=True)
            self._seen[tool.name] = tool


async def _answer_of(callbacks: Iterable[Any], **call: Any) -> Any:
    """Call the agent's own callbacks, which ADK skips after a plugin, because these callbacks may deny more."""
    for callback in callbacks:
        if (answer := await answer if isawaitable(answer := callback(**call)) else answer) is not None:
            return answer
    return None


def _response(outcome: CallOutcome) -> Any:
    if outcome.is_error or outcome.kind is OutcomeKind.DROPPED:
        return {"error" if outcome.is_error else "result": outcome.text}
    value = outcome.value if outcome.own is None else outcome.own
    # With None, ADK would run the tool. With an empty dict, a long-running tool can still send its response later.
    return {} if value is None else value


def _moves_on(tool: Any) -> bool:
    return f"{type(tool).__module__}.{type(tool).__qualname__}" in _CONTROL_FLOW


def _as_json(own: Any) -> Any:
    return to_jsonable_python(own, bytes_mode="base64", fallback=str)
