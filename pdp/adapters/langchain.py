"""Middleware for LangChain and LangGraph. Pass the middleware last to `create_agent`, or its wrappers to `ToolNode`."""

from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import orjson

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.execution.failures import ToolError, ToolUnavailableError
from pdp.installed import extra
from pdp.pep import Pep

with extra("langchain"):
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool
    from langchain_core.tracers.context import register_configure_hook
    from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER, CONFIG_KEY_SCRATCHPAD, PUSH
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
    from langgraph.types import Command, interrupt


class LangChainMiddleware(AgentMiddleware):
    """Decides each tool call of an agent, and shows the model only the tools that its caller can use.

    Add this middleware last, because a call fails if later middleware changes its arguments or runs the tool again.

    A held call is an `interrupt` that carries `CallOutcome.pending`. When the call is approved, resume the run with
    `agent.invoke(None, config)`. To reject the call, resume with `Command(resume={"type": "reject", "approval_id": ID,
    "message": WHY})`.

    If the run cannot pause, the model gets a text that names the approval.

    `CallOutcome.pending` is `{approval_id, tool, reasons, approvers, expires_at, url}`. In a graph of your own, pass
    the wrappers to `ToolNode`, and send each call in a separate `Send`, so that a resumed node does not repeat other
    calls. A `Command` that a tool returns is lost if the policy changes the result. Calls of tools that the provider
    runs are not seen, so these tools are hidden.

    Args:
        pep: decides the calls.
        session: one session, or a function of the run's `context`, as passed to `invoke`.

    Raises:
        UsageError: see `ToolGuard`.

    Example::

        guard = LangChainMiddleware(pep, session=lambda context: {"claims": context.claims})
        agent = create_agent(model, tools, middleware=[guard], checkpointer=InMemorySaver())
    """

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__()
        self._guard = ToolGuard(pep, session)
        self._checked: dict[str, BaseTool] = {}

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Show the model only tools that the caller can use. Tools that the model's provider runs are never shown."""
        shown = self._guard.visible(self._check(request.tools), request.runtime.context, *_identity(get_config()))
        return handler(_showing(request, shown))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async variant of `wrap_model_call`."""
        shown = await self._guard.avisible(
            self._check(request.tools), request.runtime.context, *_identity(get_config())
        )
        return await handler(_showing(request, shown))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Decide a call and, on ALLOW, run it with the decided arguments."""

        def run(arguments: dict[str, Any]) -> Any:
            with _running(call.tool, arguments):
                return handler(request.override(tool_call={**request.tool_call, "args": arguments}))

        call, content, answers = self._read(request)
        rejected = self._guard.reject(call, answers)
        return _answer(request, call, rejected or self._guard.call(call, run, content))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async variant of `wrap_tool_call`."""

        async def run(arguments: dict[str, Any]) -> Any:
            with _running(call.tool, arguments):
                return await handler(request.override(tool_call={**request.tool_call, "args": arguments}))

        call, content, answers = self._read(request)
        rejected = await to_thread(self._guard.reject, call, answers) if answers else None
        return _answer(request, call, rejected or await self._guard.acall(call, run, content))

    def _check(self, tools: Iterable[Any]) -> list[str]:
        """Compare new tools with the manifest, and return the names of the tools that LangChain runs."""
        own = [tool for tool in tools if isinstance(tool, BaseTool)]
        for tool in own:
            if self._checked.get(tool.name) is not tool:
                schema = tool.tool_call_schema
                self._guard.check(
                    {tool.name: schema if isinstance(schema, dict) else schema.model_json_schema()}, in_run=True
                )
                self._checked[tool.name] = tool
        return [tool.name for tool in own]

    def _read(self, request: Any) -> tuple[FrameworkCall, Callable[[Any], Any], list[Any]]:
        """Return the call, a function that reads the tool's result, and the answers with which the run was resumed."""
        call, context, config = request.tool_call, request.runtime.context, request.runtime.config
        (name,) = self._check([request.tool]) or [call["name"]]
        # A resume runs a whole task again. Only a task that `Send` made, as `create_agent` does, has a single call and
        # can pause.
        is_alone = config["metadata"].get("langgraph_path", ("",))[0] == PUSH
        pauses = is_alone and config["configurable"].get(CONFIG_KEY_CHECKPOINTER) is not None
        framework_call = FrameworkCall(name, call["args"], call["id"], context, *_identity(config), pauses)
        # Outside of calls that pause, `interrupt` does not return earlier answers, so the scratchpad is read.
        entry, known = self._guard.manifest.tools.get(name), config["configurable"][CONFIG_KEY_SCRATCHPAD]
        answers = [answer for answer in (known.get_null_resume(), *known.resume) if answer is not None]
        return framework_call, partial(_value, schema=entry.result_schema if entry else None), answers


def _identity(config: Any) -> tuple[str | None, str | None]:
    """Return the agent's name and the id of the thread. A sub-agent without a name has the name of its caller."""
    thread = config.get("configurable", {}).get("thread_id")
    return config.get("metadata", {}).get("lc_agent_name"), None if thread is None else str(thread)


def _showing(request: Any, shown: set[str]) -> Any:
    return request.override(tools=[tool for tool in request.tools if isinstance(tool, BaseTool) and tool.name in shown])


class _DecidedRun(BaseCallbackHandler):
    """Checks that a decided call starts its tool once, with the decided arguments. Calls by the tool may differ."""

    raise_error = run_inline = True

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self._decided, self._parents = (tool, arguments), set[Any]()

    def on_tool_start(self, serialized: Any, *_: Any, parent_run_id: Any = None, inputs: Any = None, **__: Any) -> None:
        """Raise `ToolError` if the tool would run with other arguments, or a second time."""
        if parent_run_id in self._parents or (not self._parents and (serialized["name"], inputs) != self._decided):
            raise ToolError(
                "middleware after LangChainMiddleware changed or repeated the call: put LangChainMiddleware last"
            )
        self._parents = self._parents or {parent_run_id}


_run: ContextVar[_DecidedRun | None] = ContextVar("pdp_langchain_run", default=None)
register_configure_hook(_run, inheritable=False)


@contextmanager
def _running(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Treat a tool that pauses the run as not run, because LangGraph runs the tool again from its start on resume."""
    token = _run.set(_DecidedRun(tool, arguments))
    try:
        yield
    except GraphInterrupt as pause:
        raise ToolUnavailableError("the tool paused the run", details={"effect": "none"}) from pause
    finally:
        _run.reset(token)


def _value(result: Any, schema: Any) -> Any:
    """Return the result in a message of `ToolNode`, whose text may be JSON. Raise `ToolError` if the tool failed."""
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, dict) else result.update
    if not isinstance(result, ToolMessage):
        values = [_value(each, schema) for each in result or () if isinstance(each, ToolMessage | Command)]
        return values[0] if len(values) == 1 else values
    if result.status == "error":
        raise ToolError(result.text)
    if isinstance(result.content, str) and (schema or {}).get("type") != "string":
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(result.content)
            return value if schema is not None or isinstance(value, dict | list) else result.content
    return result.content


def _answer(request: Any, call: FrameworkCall, outcome: CallOutcome) -> Any:
    """Return the message for the model. A held call pauses the run instead, if the run's thread can be resumed."""
    for error in (outcome.error, getattr(outcome.error, "__cause__", None)):
        if isinstance(error, GraphBubbleUp):
            raise error
    if outcome.own is not None:
        return outcome.own
    while outcome.kind is OutcomeKind.HELD and call.pauses:
        # `interrupt` returns the answer of an earlier resume, if there is one, and otherwise pauses the run.
        interrupt(outcome.pending)
    own = {"name": request.tool_call["name"], "tool_call_id": call.call_id}
    return ToolMessage(outcome.text, status="error" if outcome.is_error else "success", **own)
