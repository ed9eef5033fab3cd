"""Pydantic AI: a capability that decides what the agent's toolsets run, the innermost of all wrappers.

A call that is HELD raises `ApprovalRequired`, so that the run ends with `DeferredToolRequests`. `True`, `ToolApproved`
and its `override_args` in the `DeferredToolResults` have the call decided again, and so it runs when it is granted.
Tools of the provider, output functions and external tools run beside the toolsets, and are refused.
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
    """Decides the calls of an agent's tools: `Agent(..., capabilities=[PydanticAiCapability(pep, session)])`.

    Each agent needs one, also an agent that another one's tool runs.

    Args:
        pep: who decides.
        session: whose calls these are, or a function of the run's `deps`. Where it states no `run_id`, that is the
            conversation's id, and `agent` is the agent's name.
        pauses: whether the run's output type has `DeferredToolRequests`; if not, the model is told of a held call.

    Raises:
        UsageError: as of `ToolGuard`; in a run, that a tool would run undecided.
    """

    def __init__(self, pep: Pep, session: SessionSource, *, pauses: bool = True) -> None:
        self._guard, self._pauses = ToolGuard(pep, session), pauses

    def get_ordering(self) -> Any:
        """Return that no other capability is between this one and the tools."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        """Return the tools, decided."""
        return _DecidedToolset(toolset, self._guard, self._pauses)

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:  # noqa: ARG002 - the framework's
        """Refuse tools that the model's provider runs."""
        if found := request_context.model_request_parameters.native_tools:
            raise UsageError(f"{', '.join(tool.kind for tool in found)}: the provider runs it, and nobody decides it")
        return request_context

    async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:  # noqa: ARG002
        """Refuse output functions."""
        if output_context.has_function:
            name = output_context.function_name or "an output function"
            raise UsageError(f"{name} runs with what the model gives, and nobody decides it", hint="make it a tool")
        return await handler(output)


@dataclass
class _DecidedToolset(WrapperToolset):  # type: ignore[misc]
    guard: ToolGuard
    pauses: bool

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        tools = await super().get_tools(ctx)
        if beside := [name for name, tool in tools.items() if tool.tool_def.kind not in _RUN_HERE]:
            raise UsageError(f"{', '.join(beside)}: it is run outside of the agent, and nobody decides it")
        self.guard.check({name: tool.tool_def.parameters_json_schema for name, tool in tools.items()}, in_run=True)
        shown = await self.guard.avisible([*tools], ctx.deps, _agent(ctx), ctx.conversation_id)
        return {name: tool for name, tool in tools.items() if name in shown}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        try:
            asked = _stated(tool_args, tool.tool_def.parameters_json_schema)
        except PydanticSerializationError:
            raise ToolFailed(f"{name}: its arguments are not JSON, so that nobody can decide on them") from None

        async def run(decided: dict[str, Any]) -> Any:
            given = tool_args
            if decided != asked:
                given = tool.args_validator.validate_json(canonical(decided), context=ctx.validation_context)
            return await self.wrapped.call_tool(name, given, ctx, tool)

        call = FrameworkCall(name, asked, ctx.tool_call_id, ctx.deps, _agent(ctx), ctx.conversation_id)
        outcome = await self.guard.acall(call, run, _content)
        if isinstance(outcome.error, _CONTROL_FLOW):
            raise outcome.error
        if outcome.kind is OutcomeKind.HELD and self.pauses:
            raise ApprovalRequired(metadata=outcome.pending)
        if outcome.is_error:
            raise ToolFailed(outcome.text)
        given_back = outcome.value if outcome.own is None else outcome.own
        return outcome.text if given_back is None else given_back


def _agent(ctx: Any) -> str | None:
    return ctx.agent.name if ctx.agent is not None else None


def _stated(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return what runs as JSON; validation has put in None, or a model's defaults, for what was not stated."""
    stated = _ANY.dump_python(arguments, mode="json", by_alias=True, exclude_unset=True)
    members = schema.get("properties", {})
    optional = {name for name, member in members.items() if "default" in member and member["default"] is None}
    return {name: value for name, value in stated.items() if value is not None or name not in optional}


def _content(result: Any) -> Any:
    value = result.return_value if isinstance(result, ToolReturn) else result
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")
