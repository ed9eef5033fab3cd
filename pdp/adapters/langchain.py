"""LangChain and LangGraph: the last of `create_agent`'s `middleware`, or the wrappers of a `ToolNode`."""

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
    """Decides each tool call of an agent before it runs, and shows the model only tools that its caller can use.

    A call that waits for an approval is an `interrupt` with `CallOutcome.pending`. Once it is granted, resume the run
    by `agent.invoke(None, config)`; after `Command(resume={"type": "reject", "approval_id": ID, "message": WHY})` the
    model is told so. Where a run cannot pause, the model is told what the call waits for.

    Arguments and errors are those of `ToolGuard`; a session's function gets the run's `context`, as `invoke` is given
    it. It is the last middleware: a call fails whose arguments another one changes, or whose body it runs again.
    """

    def __init__(self, pep: Pep, session: SessionSource) -> None:
        super().__init__()
        self._guard = ToolGuard(pep, session)
        self._checked: dict[str, BaseTool] = {}

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """List only what the caller can use; never a tool that the model's provider runs by itself."""
        shown = self._guard.visible(self._check(request.tools), request.runtime.context, *_whose(get_config()))
        return handler(_showing(request, shown))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async variant of `wrap_model_call`."""
        shown = await self._guard.avisible(self._check(request.tools), request.runtime.context, *_whose(get_config()))
        return await handler(_showing(request, shown))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Decide a call and, on ALLOW alone, have it run with the decided arguments."""

        def run(arguments: dict[str, Any]) -> Any:
            with _running(call.tool, arguments):
                return handler(request.override(tool_call={**request.tool_call, "args": arguments}))

        call, content, answers = self._asked(request)
        rejected = self._guard.reject(call, answers)
        return _answer(request, call, rejected or self._guard.call(call, run, content))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async variant of `wrap_tool_call`."""

        async def run(arguments: dict[str, Any]) -> Any:
            with _running(call.tool, arguments):
                return await handler(request.override(tool_call={**request.tool_call, "args": arguments}))

        call, content, answers = self._asked(request)
        rejected = await to_thread(self._guard.reject, call, answers) if answers else None
        return _answer(request, call, rejected or await self._guard.acall(call, run, content))

    def _check(self, tools: Iterable[Any]) -> list[str]:
        """Hold tools against the manifest, each once, and return the names of those that LangChain runs."""
        own = [tool for tool in tools if isinstance(tool, BaseTool)]
        for tool in own:
            if self._checked.get(tool.name) is not tool:
                schema = tool.tool_call_schema
                self._guard.check(
                    {tool.name: schema if isinstance(schema, dict) else schema.model_json_schema()}, in_run=True
                )
                self._checked[tool.name] = tool
        return [tool.name for tool in own]

    def _asked(self, request: Any) -> tuple[FrameworkCall, Callable[[Any], Any], list[Any]]:
        """Return the call of what runs, whichever tool a middleware chose; what reads its result; answers."""
        call, context, config = request.tool_call, request.runtime.context, request.runtime.config
        (name,) = self._check([request.tool]) or [call["name"]]
        # A resume runs a task anew, which has one call where it is a `Send`, as of `create_agent`.
        is_alone = config["metadata"].get("langgraph_path", ("",))[0] == PUSH
        pauses = is_alone and config["configurable"].get(CONFIG_KEY_CHECKPOINTER) is not None
        asked = FrameworkCall(name, call["args"], call["id"], context, *_whose(config), pauses)
        # `interrupt` would give the answers only to who is about to pause.
        entry, known = self._guard.manifest.tools.get(name), config["configurable"][CONFIG_KEY_SCRATCHPAD]
        answers = [answer for answer in (known.get_null_resume(), *known.resume) if answer is not None]
        return asked, partial(_value, schema=entry.result_schema if entry else None), answers


def _whose(config: Any) -> tuple[str | None, str | None]:
    """Return the `name` that `create_agent` was given, which a sub-agent without one has of its caller; the thread."""
    thread = config.get("configurable", {}).get("thread_id")
    return config.get("metadata", {}).get("lc_agent_name"), None if thread is None else str(thread)


def _showing(request: Any, shown: set[str]) -> Any:
    return request.override(tools=[tool for tool in request.tools if isinstance(tool, BaseTool) and tool.name in shown])


class _DecidedRun(BaseCallbackHandler):
    """Hears of each tool that starts in a decided call. What the tool itself calls has another parent."""

    raise_error = run_inline = True

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self._decided, self._parents = (tool, arguments), set[Any]()

    def on_tool_start(self, serialized: Any, *_: Any, parent_run_id: Any = None, inputs: Any = None, **__: Any) -> None:
        """ToolError: the body would run with other arguments, or again."""
        if parent_run_id in self._parents or (not self._parents and (serialized["name"], inputs) != self._decided):
            raise ToolError(
                "middleware inside of the guard changed the call or repeats it: put LangChainMiddleware last"
            )
        self._parents = self._parents or {parent_run_id}


_run: ContextVar[_DecidedRun | None] = ContextVar("pdp_langchain_run", default=None)
register_configure_hook(_run, inheritable=False)


@contextmanager
def _running(tool: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Let a tool pause the run: LangGraph runs it anew from its beginning, so that until then it has done nothing."""
    token = _run.set(_DecidedRun(tool, arguments))
    try:
        yield
    except GraphInterrupt as pause:
        raise ToolUnavailableError("the tool has paused the run", details={"effect": "none"}) from pause
    finally:
        _run.reset(token)


def _value(result: Any, schema: Any) -> Any:
    """Return the result out of what `ToolNode` makes of it: text of any JSON. ToolError: the tool has failed."""
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
    """Return what the model sees; a call that is held pauses the run, where it has a thread to be resumed in."""
    for error in (outcome.error, getattr(outcome.error, "__cause__", None)):
        if isinstance(error, GraphBubbleUp):
            raise error
    if outcome.own is not None:
        return outcome.own
    while outcome.kind is OutcomeKind.HELD and call.pauses:
        interrupt(outcome.pending)  # returns the answers of earlier resumes, and then pauses the run
    own = {"name": request.tool_call["name"], "tool_call_id": call.call_id}
    return ToolMessage(outcome.text, status="error" if outcome.is_error else "success", **own)
