"""A capability for Pydantic AI that decides each tool call, as the innermost wrapper of the agent's toolsets.

A held call raises `ApprovalRequired`, so the run ends with `DeferredToolRequests`. If the `DeferredToolResults` contain
`True` or `ToolApproved`, the call is decided again, with any `override_args`, and runs if its approval was granted.
Tools of the provider, output functions and external tools run outside of the toolsets, so they raise `UsageError`.
"""

from dataclasses import dataclass
from typing import Any, Final

from pdp.adapters.guard.guard import FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.errors import UsageError
from pdp.installed import extra
from pdp.json import canonical
from pdp.pep import Pep

with extra("pydantic-ai"):
    from pydantic import TypeAdapter
    from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import AgentRunError, ToolFailed
    from pydantic_ai.toolsets import WrapperToolset
    from pydantic_core import PydanticSerializationError, to_jsonable_python


_CONTROL_FLOW: Final = (AgentRunError, ApprovalRequired, CallDeferred, ModelRetry, ToolFailed)
_RUN_HERE: Final = frozenset(("function", "unapproved"))
_ANY: Final = TypeAdapter[Any](Any)


class PydanticAiCapability(AbstractCapability):  # type: ignore[misc]
    """Decides the calls of an agent's tools.

    Each agent needs a separate capability, even an agent that runs in a tool of another agent.

    `metadata` of the `DeferredToolRequests` has what each call waits for. Without a grant, a resumed call is deferred
    again. The capability decides the arguments that the tool gets, after all other hooks. A toolset that wraps another
    one counts as a part of its tools, and could still change their arguments.

    Args:
        pep: decides the calls.
        session: one session, or a function of the run's `deps`. By default, `run_id` is the conversation's id and
            `agent` is the agent's name.
        pauses: whether the agent's output type includes `DeferredToolRequests`. If not, a held call is answered with
            text for the model.

    Raises:
        UsageError: see `ToolGuard`. The error ends a run in which a tool would run without a decision.

    Example::

        agent = Agent(model, toolsets=[tools], capabilities=[PydanticAiCapability(pep, session)])
    """

    def __init__(self, pep: Pep, session: SessionSource, *, pauses: bool = True) -> None:
        self._guard, self._pauses = ToolGuard(pep, session), pauses

    def get_ordering(self) -> Any:
        """Return the position of this capability: innermost, next to the tools."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """Return a toolset that decides each call before `toolset` runs it."""
        return _DecidedToolset(toolset, self._guard, self._pauses)

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:  # noqa: ARG002 - overrides
        """Raise `UsageError` if a request has tools that the model's provider runs."""
        if native_tools := request_context.model_request_parameters.native_tools:
            raise UsageError(
                f"{', '.join(tool.kind for tool in native_tools)}: the provider runs this tool without a decision"
            )
        return request_context

    async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:  # noqa: ARG002
        """Raise `UsageError` if the agent has an output function."""
        if output_context.has_function:
            name = output_context.function_name or "an output function"
            raise UsageError(f"{name} runs on the model's output without a decision", hint="make the function a tool")
        return await handler(output)


@dataclass
class _DecidedToolset(WrapperToolset):  # type: ignore[misc]
    guard: ToolGuard
    pauses: bool

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        tools = await super().get_tools(ctx)
        if external := [name for name, tool in tools.items() if tool.tool_def.kind not in _RUN_HERE]:
            raise UsageError(f"{', '.join(external)}: this tool runs outside of the agent, without a decision")
        self.guard.check({name: tool.tool_def.parameters_json_schema for name, tool in tools.items()}, in_run=True)
        shown = await self.guard.avisible([*tools], ctx.deps, _agent(ctx), ctx.conversation_id)
        return {name: tool for name, tool in tools.items() if name in shown}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        try:
            proposed = _stated(tool_args, tool.tool_def.parameters_json_schema)
        except PydanticSerializationError:
            raise ToolFailed(f"{name}: the call cannot be decided, because its arguments are not JSON") from None

        async def run(decided: dict[str, Any]) -> Any:
            given = tool_args
            if decided != proposed:
                given = tool.args_validator.validate_json(canonical(decided), context=ctx.validation_context)
            return await self.wrapped.call_tool(name, given, ctx, tool)

        call = FrameworkCall(name, proposed, ctx.tool_call_id, ctx.deps, _agent(ctx), ctx.conversation_id)
        outcome = await self.guard.acall(call, run, _content)
        if isinstance(outcome.error, _CONTROL_FLOW):
            raise outcome.error
        if outcome.kind is OutcomeKind.HELD and self.pauses:
            raise ApprovalRequired(metadata=outcome.pending)
        if outcome.is_error:
            raise ToolFailed(outcome.text)
        result = outcome.value if outcome.own is None else outcome.own
        return outcome.text if result is None else result


def _agent(ctx: Any) -> str | None:
    return ctx.agent.name if ctx.agent is not None else None


def _stated(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON, without the None values and model defaults that validation added."""
    stated = _ANY.dump_python(arguments, mode="json", by_alias=True, exclude_unset=True)
    members = schema.get("properties", {})
    optional = {name for name, member in members.items() if "default" in member and member["default"] is None}
    return {name: value for name, value in stated.items() if value is not None or name not in optional}


def _content(result: Any) -> Any:
    value = result.return_value if isinstance(result, ToolReturn) else result
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")
