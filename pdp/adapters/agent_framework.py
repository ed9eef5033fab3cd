"""Microsoft's Agent Framework: middleware that decides each call of a tool around its execution.

    Agent(client, tools=tools, middleware=agent_framework_middleware(pep, session))

A tool that the provider runs, or the application itself, is shown to no model: its calls could not be decided.
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

    # There is no public way to say that whoever changes arguments after this stops the run.
    from agent_framework._tools import _SECURITY_ARGUMENTS_SNAPSHOT_CONTEXT_KEY as _DECIDED_ARGUMENTS
    from agent_framework._tools import _argument_authority_token as _token_of


_CONTROL_FLOW: Final = (maf.MiddlewareFailure, maf.MiddlewareTermination, maf.UserInputRequiredException)

_inside: ContextVar[bool] = ContextVar("pdp_agent_framework_inside", default=False)


def agent_framework_middleware(pep: Pep, session: SessionSource) -> list[Any]:
    """Return the middleware of an `Agent`, all of which it needs; others may stand before and after.

    A call that is held ends the run with a `function_approval_request`, whose `additional_properties["approval"]` says
    what it waits for. Without an `AgentSession` of the application, and in a sub-agent, the model is told instead.

    Args:
        pep: who decides.
        session: one session, or a function of the run's `AgentContext`: what the application passed to `Agent.run` is
            its `session` and `function_invocation_kwargs`; its `messages` are no source of trust.

    Raises:
        UsageError: as `ToolGuard`.
    """
    place = _Place()
    return [_RunStart(ToolGuard(pep, session), place), place]


class _Place(maf.FunctionMiddleware):
    """Stands where a run's own middleware is put, and denies all calls where it was not."""

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:  # noqa: ARG002 - as declared
        context.result = f"Error: {UNDECIDED.text}"


class _RunStart(maf.AgentMiddleware):
    """Puts middleware in place that knows the run: whose it is, and which agent's."""

    def __init__(self, guard: ToolGuard, place: _Place) -> None:
        self._guard, self._place = guard, place

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        others = [each for each in context.client_kwargs["middleware"] if each is not self._place]
        own = [_RunTools(self._guard, context), _RunCalls(self._guard, context)]
        context.client_kwargs["middleware"] = [*others, *own]
        await call_next()


class _RunTools(maf.ChatMiddleware):
    """Shows the model those of a run's tools that it may use, before each of its turns."""

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
    """Decides the calls of one run."""

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
    """The token of decided arguments. The framework compares it before it runs a tool: it is equal once."""

    def __init__(self, token: Any) -> None:
        self._tokens = [token]

    def __ne__(self, other: object) -> bool:
        return not self._tokens or bool(self._tokens.pop() != other)


def _run_id(run: Any) -> str | None:
    return None if run.session is None else run.session.session_id


def _json(result: Any) -> Any:
    """Return as JSON what a tool gave; the framework has made text of it."""
    if not isinstance(result, list) or [item.type for item in result] != ["text"]:
        return to_jsonable_python([item.to_dict() for item in result] if isinstance(result, list) else result)
    try:
        return orjson.loads(result[0].text)
    except orjson.JSONDecodeError:
        return result[0].text


def _approval_request(context: Any, outcome: CallOutcome) -> Any:
    """Return the framework's pause: a request to approve the call with the arguments that were decided."""
    call_id, approval = context.metadata["call_id"], outcome.approval
    own_id = context.metadata.get("function_call_occurrence_id", call_id)
    arguments = orjson.loads(approval.body)["context"]["arguments"] if approval is not None else {}
    call = maf.Content.from_function_call(call_id, context.function.name, arguments=arguments, id=own_id)
    return maf.Content.from_function_approval_request(own_id, call, additional_properties={"approval": outcome.pending})
