"""Middleware for Microsoft's Agent Framework that decides each tool call.

Tools that the provider or the application itself runs are hidden from the model, because their calls cannot be decided.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import orjson
from pydantic_core import to_jsonable_python

from pdp.adapters.guard.guard import UNDECIDED, CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.execution.runner import set_within
from pdp.installed import extra
from pdp.pep import Pep

with extra("agent-framework"):
    import agent_framework as maf

    # The framework has no public way to stop a run if later middleware changes the arguments.
    from agent_framework._tools import _SECURITY_ARGUMENTS_SNAPSHOT_CONTEXT_KEY as _DECIDED_ARGUMENTS
    from agent_framework._tools import _argument_authority_token as _token_of


_CONTROL_FLOW: Final = (maf.MiddlewareFailure, maf.MiddlewareTermination, maf.UserInputRequiredException)

_inside: ContextVar[bool] = ContextVar("pdp_agent_framework_inside", default=False)


def agent_framework_middleware(pep: Pep, session: SessionSource) -> list[Any]:
    """Return middleware for an `Agent`. Pass the whole list; other middleware may come before or after the list.

    A held call ends the run with a `function_approval_request`, whose `additional_properties["approval"]` is
    `CallOutcome.pending`. Without an `AgentSession`, or in a sub-agent, the run goes on and the model gets a text.

    To resume, answer the request in a run with the same `AgentSession`. A call that is still not granted is answered
    with text. Middleware of a context provider runs after the decision: if it changes the arguments or repeats the
    call, the run stops. A `RawAgent` runs no agent middleware, so give it no tools.

    Args:
        pep: decides the calls.
        session: one session, or a function of the run's `AgentContext`. The context's `session` and
            `function_invocation_kwargs` come from the application's `Agent.run`; do not trust the context's `messages`.

    Raises:
        UsageError: see `ToolGuard`.

    Example::

        agent = Agent(client, tools=tools, middleware=agent_framework_middleware(pep, session))
    """
    place = _DenyAll()
    return [_RunStart(ToolGuard(pep, session), place), place]


class _DenyAll(maf.FunctionMiddleware):
    """Denies all calls. In each run, `_RunStart` replaces this middleware with middleware that decides."""

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:  # noqa: ARG002 - overrides
        context.result = f"Error: {UNDECIDED.text}"


class _RunStart(maf.AgentMiddleware):
    """Replaces `_DenyAll` with middleware that knows the run and its agent."""

    def __init__(self, guard: ToolGuard, place: _DenyAll) -> None:
        self._guard, self._place = guard, place

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        others = [each for each in context.client_kwargs["middleware"] if each is not self._place]
        own = [_RunTools(self._guard, context), _RunCalls(self._guard, context)]
        context.client_kwargs["middleware"] = [*others, *own]
        await call_next()


class _RunTools(maf.ChatMiddleware):
    """Shows the model only the tools that the run may use, before each turn."""

    def __init__(self, guard: ToolGuard, run: Any) -> None:
        self._guard, self._run = guard, run

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        given = (context.options or {}).get("tools") or []
        tools = {each.name: each for each in given if isinstance(each, maf.FunctionTool) and not each.declaration_only}
        self._guard.check({name: tool.parameters() for name, tool in tools.items()}, in_run=True)
        shown = await self._guard.avisible(tools, self._run, self._run.agent.name, _run_id(self._run))
        rest = {name: value for name, value in (context.options or {}).items() if name != "tools"}
        context.options = {**rest, "tools": [tools[name] for name in tools if name in shown]} if shown else rest
        await call_next()


class _RunCalls(maf.FunctionMiddleware):
    def __init__(self, guard: ToolGuard, run: Any) -> None:
        self._guard, self._run = guard, run
        self._can_pause = run.session is not None and not _inside.get()

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        proposed, call_id = to_jsonable_python(context.arguments), context.metadata["call_id"]

        async def run(decided: dict[str, Any]) -> Any:
            if decided != proposed:
                context.arguments = decided
            context.metadata[_DECIDED_ARGUMENTS] = _Once(_token_of(dict(context.arguments), boundary="policy"))
            with set_within(_inside, True):
                await call_next()
            return context.result

        name, agent = context.function.name, self._run.agent.name
        self._guard.check({name: context.function.parameters()}, in_run=True)
        call = FrameworkCall(name, proposed, call_id, self._run, agent, _run_id(self._run), self._can_pause)
        outcome = await self._guard.acall(call, run, _json)
        if isinstance(outcome.error, _CONTROL_FLOW):
            raise outcome.error
        if outcome.own is not None:
            context.result = outcome.own
        elif outcome.kind is OutcomeKind.HELD and self._can_pause and "approval_response" not in context.metadata:
            context.result = _approval_request(context, outcome)
        else:
            context.result = f"Error: {outcome.text}" if outcome.is_error else outcome.text


class _Once:
    """The framework's token for the decided arguments. The token is valid once, so the tool cannot run twice."""

    def __init__(self, token: Any) -> None:
        self._tokens = [token]

    def __ne__(self, other: object) -> bool:
        return not self._tokens or bool(self._tokens.pop() != other)


def _run_id(run: Any) -> str | None:
    return None if run.session is None else run.session.session_id


def _json(result: Any) -> Any:
    """Return a tool's result as JSON, parsed from the text that the framework makes of the result."""
    if not isinstance(result, list) or [item.type for item in result] != ["text"]:
        return to_jsonable_python([item.to_dict() for item in result] if isinstance(result, list) else result)
    try:
        return orjson.loads(result[0].text)
    except orjson.JSONDecodeError:
        return result[0].text


def _approval_request(context: Any, outcome: CallOutcome) -> Any:
    call_id, approval = context.metadata["call_id"], outcome.approval
    own_id = context.metadata.get("function_call_occurrence_id", call_id)
    arguments = orjson.loads(approval.body)["context"]["arguments"] if approval is not None else {}
    call = maf.Content.from_function_call(call_id, context.function.name, arguments=arguments, id=own_id)
    return maf.Content.from_function_approval_request(own_id, call, additional_properties={"approval": outcome.pending})
