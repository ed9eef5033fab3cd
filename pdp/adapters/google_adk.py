"""Google's Agent Development Kit: a plugin that runs a tool inside its decision.

`Runner(app=App(name=..., root_agent=..., plugins=[AdkPlugin(pep, session)]), ...)`. A plugin is asked about every agent
of its runner, and of each `AgentTool`. What a before-tool callback answers is the tool's result: ours runs the tool.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import FrameworkCall, ToolGuard
from pdp.adapters.guard.outcome import CallOutcome, OutcomeKind
from pdp.errors import UsageError
from pdp.installed import extra

with extra("google-adk"):
    from google.adk.plugins.base_plugin import BasePlugin
    from google.genai import types

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pdp.adapters.guard.guard import SessionSource
    from pdp.pep import Pep

# What only moves the run on: to another agent, whose calls are decided, or to its end. ADK starts a task's agent on the
# model's word, whatever a callback answers. A class that moves elsewhere is decided as any tool is.
_CONTROL_FLOW: Final = frozenset((
    "google.adk.agents.llm.task._finish_task_tool.FinishTaskTool",
    "google.adk.tools.agent_tool._TaskAgentTool",
    "google.adk.tools.set_model_response_tool.SetModelResponseTool",
    "google.adk.tools.transfer_to_agent_tool.TransferToAgentTool",
))  # fmt: skip
_UNCONFIRMED: Final = "this call waits for a person's confirmation, and nothing ran"
_REJECTED: Final = "a person rejected this call, and nothing ran"


class AdkPlugin(BasePlugin):
    """Decides the calls of all tools of a runner. Register it last: plugins after it are not asked before a tool.

    Args:
        pep: who decides.
        session: one session, or a function of ADK's `ToolContext` (of a list, its `CallbackContext`): `user_id`,
            `session.id`, `run_config.custom_metadata` are the application's; `state` is also written by tools and,
            through an agent's `output_key`, by the model.

    Raises:
        UsageError: as of `ToolGuard`. In a run, which it ends: a tool that is not as its manifest says, an agent with
            a code executor, an `AgentTool` without plugins, a tool that the model's provider runs.
    """

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__(name="pdp")
        self._guard = ToolGuard(pep, session)
        self._seen: set[str] = set()

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        """Hold the agent's tools against the manifest, and refuse what would run without a decision."""
        if getattr(agent, "code_executor", None) is not None:
            raise UsageError(
                f"agent {agent.name} has a code executor, whose code runs without a decision",
                hint="give it a tool that runs code, and declare that in the manifest",
            )
        if hasattr(agent, "canonical_tools"):
            self._check(await agent.canonical_tools(callback_context))

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Show the model what its caller can ever use."""
        tools = llm_request.tools_dict
        visible = await self._guard.avisible(tools.keys(), callback_context, callback_context.agent_name)
        visible |= {name for name, tool in tools.items() if _moves_on(tool)}
        groups = llm_request.config.tools or []
        for group in groups:
            known = isinstance(group, types.Tool)
            if not known or group.model_dump(exclude_none=True, exclude={"function_declarations"}):
                raise UsageError(
                    f"agent {callback_context.agent_name} has a tool that its model's provider runs without a decision",
                    hint="take it out, or give the agent a function that does the same",
                )
            group.function_declarations = [each for each in group.function_declarations or [] if each.name in visible]
        llm_request.config.tools = [group for group in groups if group.function_declarations] or None

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        """Decide the call, run the tool on ALLOW, and answer in its place."""
        if _moves_on(tool):
            return None
        if tool.name not in self._seen:
            self._check([tool])
        invocation = tool_context.get_invocation_context()
        # An answer of ours skips the agent's own callbacks, which may forbid more than the policy does.
        for callback in getattr(invocation.agent, "canonical_before_tool_callbacks", ()):
            answer = callback(tool=tool, args=tool_args, tool_context=tool_context)
            if isawaitable(answer):
                answer = await answer
            if answer is not None:
                return answer

        async def run(decided: dict[str, Any]) -> Any:
            return await tool.run_async(args=decided, tool_context=tool_context)

        context, confirmation = tool_context, tool_context.tool_confirmation
        if confirmation is not None and not confirmation.confirmed:
            return {"error": _REJECTED}
        call = FrameworkCall(
            tool.name, tool_args, context.function_call_id, context, context.agent_name, context.session.id
        )
        # A confirmation that the tool itself wants comes before its run, whose result may be stored for replays.
        confirms = confirmation is None and await tool.check_require_confirmation(tool_args, context)
        outcome = await (self._guard.aask(call) if confirms else self._guard.acall(call, run, _as_json))
        waits = confirms and outcome.kind is OutcomeKind.RAN
        # A live run cannot resume, nor can a call that was resumed: the model is told to make it again.
        if (waits or outcome.kind is OutcomeKind.HELD) and not (confirmation or invocation.live_request_queue):
            hint = _UNCONFIRMED if waits else outcome.text
            context.request_confirmation(hint=hint, payload=outcome.pending)
            context.actions.skip_summarization = True
        return {"error": _UNCONFIRMED} if waits else _response(outcome)

    def _check(self, tools: Iterable[Any]) -> None:
        for tool in tools:
            if not getattr(tool, "include_plugins", True):
                raise UsageError(f"tool {tool.name} runs its agent without plugins, so without decisions")
            declared = tool._get_declaration()  # noqa: SLF001 - ADK has no other way to a tool's schema
            schema = declared and (declared.parameters_json_schema or _json_schema(declared.parameters))
            if schema and not _moves_on(tool):
                self._guard.check({tool.name: schema})
            self._seen.add(tool.name)


def _moves_on(tool: Any) -> bool:
    return f"{type(tool).__module__}.{type(tool).__qualname__}" in _CONTROL_FLOW


def _json_schema(parameters: Any) -> Any:
    return parameters and parameters.json_schema.model_dump(mode="json", exclude_none=True)


def _as_json(own: Any) -> Any:
    return to_jsonable_python(own, bytes_mode="base64", fallback=str)


def _response(outcome: CallOutcome) -> Any:
    if outcome.is_error:
        return {"error": outcome.text}
    if outcome.kind is OutcomeKind.DROPPED:
        return {"result": outcome.text}
    if outcome.own is not None:
        return outcome.own
    # Never None, on which ADK would run the tool. Empty, a tool that goes on for long gives its response later.
    value = outcome.value
    return {} if value is None else value if isinstance(value, dict) else {"result": value}
