"""Servers of the MCP SDK: a middleware that decides each `tools/call` and filters `tools/list`.

What a context has beside the verified token (`meta`, `params`, the client's info) are the client's own words.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pdp.adapters.guard.guard import FrameworkCall, ToolGuard
from pdp.adapters.guard.outcome import CallOutcome, OutcomeKind
from pdp.errors import UsageError
from pdp.execution.failures import ToolError, ToolUnavailableError
from pdp.installed import extra

with extra("mcp"):
    import mcp_types as types
    from mcp.shared.exceptions import MCPError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from pdp.adapters.guard.guard import SessionSource
    from pdp.pep import Pep

    Context = ServerRequestContext[Any, Any]

_NEW: Final = "2026-07-28"  # the first revision where a result asks for input
_PAGES: Final = 100
_log = logging.getLogger("pdp.adapters")


class InputAskedError(ToolUnavailableError):
    """The tool asks the client for input before it does anything. `result`: the server's, which asks."""

    def __init__(self, result: Any) -> None:
        super().__init__("the tool asks for input", details={"effect": "none"})
        self.result = result


class McpMiddleware:
    """Lets the server run a tool on ALLOW alone. Put it before other middleware: what is outside of it is not decided.

    `page`: the start of an address, which ends in an approval's id, where people grant it. A client that opens pages is
    sent there; that it did, or that its person accepted, grants nothing. Errors as of `ToolGuard`.
    """

    def __init__(self, pep: Pep, session: SessionSource, *, page: str | None = None) -> None:
        self._guard, self._page = ToolGuard(pep, session), page
        self._known: set[str] = set()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a message; MCPError: a tool's schema is not the manifest's, or the server raises one."""
        if ctx.request_id is not None and ctx.method == "tools/call":
            return await self._called(ctx, call_next)
        if ctx.request_id is not None and ctx.method == "tools/list":
            listed = await self._listed(ctx, call_next)
            shown = await self._guard.avisible([tool["name"] for tool in listed["tools"]], ctx)
            own = {"ttlMs": 0, "cacheScope": "private"} if ctx.protocol_version >= _NEW else {}
            return {**listed, "tools": [tool for tool in listed["tools"] if tool["name"] in shown], **own}
        return await call_next(ctx)

    async def _called(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        params = types.CallToolRequestParams.model_validate(ctx.params or {}, by_name=False)
        if params.name in self._guard.manifest.tools and params.name not in self._known:
            await self._look(ctx, call_next, params.name)
        call = FrameworkCall(params.name, params.arguments or {}, str(ctx.request_id), ctx, pauses=False)
        own = own_of(outcome := await self._guard.acall(call, running(ctx, call_next), content))
        return told(outcome, self._page, ctx, params) if own is None else dict(own)

    async def _look(self, ctx: Context, call_next: CallNext, name: str) -> None:
        """See to it that a tool's schema is held against the manifest before it is called the first time."""
        params = {key: value for key, value in (ctx.params or {}).items() if key == "_meta"}
        for _ in range(_PAGES):
            listed = await self._listed(replace(ctx, method="tools/list", params=params), call_next)
            params["cursor"] = listed.get("nextCursor")
            if name in self._known or params["cursor"] is None:
                break
        if name not in self._known:
            raise drifted(f"{name} is not listed by the server")

    async def _listed(self, ctx: Context, call_next: CallNext) -> dict[str, Any]:
        listed: Any = await call_next(ctx)
        schemas = {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
        check_schemas(self._guard, schemas)
        self._known |= schemas.keys()
        return dict(listed)


def check_schemas(guard: ToolGuard, schemas: dict[str, Any]) -> None:
    """Hold tools against the manifest; MCPError: one is not as declared."""
    try:
        guard.check(schemas)
    except UsageError as error:
        raise drifted(error.message) from None


def running(ctx: Context, call_next: CallNext) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """Return what runs a `tools/call` with the decided arguments; ToolError: its result says that it failed."""

    async def run(decided: dict[str, Any]) -> dict[str, Any]:
        result: Any = await call_next(replace(ctx, params={**(ctx.params or {}), "arguments": decided}))
        if (kind := result.get("resultType")) == "input_required":
            raise InputAskedError(result)
        if kind not in (None, "complete"):
            raise ToolError("the server runs the tool as a task, whose result cannot be guarded")
        if result.get("isError"):
            raise ToolError("\n".join(block.get("text", "") for block in result["content"]) or "the tool failed")
        return dict(result)

    return run


def own_of(outcome: CallOutcome) -> Any:
    """Return the server's own result, where it still is the result; MCPError: the server raised it."""
    if isinstance(outcome.error, MCPError):
        raise outcome.error
    return outcome.error.result if isinstance(outcome.error, InputAskedError) else outcome.own


def told(
    outcome: CallOutcome, page: str | None, ctx: Any, params: types.CallToolRequestParams
) -> types.InputRequiredResult | types.CallToolResult:
    """Return the result where the server has none; a held call sends a client to the page once. `ctx`: or None."""
    text, approval = outcome.text, outcome.approval
    if outcome.kind is OutcomeKind.RAN and isinstance(outcome.value, dict) and "content" in outcome.value:
        return types.CallToolResult.model_validate(outcome.value)
    if page is not None and approval is not None:
        declared = ctx.session.client_capabilities if ctx and ctx.protocol_version >= _NEW else None
        if declared and declared.elicitation and declared.elicitation.url and not params.input_responses:
            asked = types.ElicitRequestURLParams(message=text, url=f"{page}{approval.id}")
            return types.InputRequiredResult(input_requests={"approval": types.ElicitRequest(params=asked)})
        text = f"{text} It is granted at {page}{approval.id}"
    # Not of a dropped call either: clients hold any other result against the tool's output schema.
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=outcome.kind is not OutcomeKind.RAN)


def drifted(what: str) -> MCPError:
    """Return the error of a server whose tools are not as declared; only its log says which, as some are hidden."""
    _log.error("no call is made: %s", what)
    return MCPError(types.INTERNAL_ERROR, "pdp.usage: tools are not as their manifest says; the server's log says more")


def content(result: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a `tools/call` result that is the tool's own."""
    return {key: result[key] for key in ("content", "structuredContent") if key in result}
