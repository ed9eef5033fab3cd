"""Servers of the MCP SDK: a middleware that decides each `tools/call` and filters `tools/list`.

What a context has beside the verified token (`meta`, `params`, the client's info) are the client's own words.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pdp.adapters.guard.guard import CallOutcome, FrameworkCall, OutcomeKind, SessionSource, ToolGuard
from pdp.execution.failures import ToolError, ToolUnavailableError
from pdp.installed import extra
from pdp.pep import Pep

with extra("mcp"):
    import mcp_types as types
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.shared.exceptions import MCPError

Context = ServerRequestContext[Any, Any]

_NEW: Final = "2026-07-28"  # the first revision where a result asks for input
_PAGES: Final = 100


class InputAskedError(ToolUnavailableError):
    """The tool asks the client for input before it does anything. `result`: the server's, which asks."""

    def __init__(self, result: Any) -> None:
        super().__init__("the tool asks for input", details={"effect": "none"})
        self.result = result


class McpMiddleware:
    """Lets the server run a tool on ALLOW alone. It is the last middleware: none may change what was decided.

    `page`: the start of an address, which ends in an approval's id, where people grant it. A client that opens pages is
    sent there; that it did, or that its person accepted, grants nothing. Errors as of `ToolGuard`.
    """

    def __init__(self, pep: Pep, session: SessionSource, *, page: str | None = None) -> None:
        self._guard, self._page = ToolGuard(pep, session), page

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a message; MCPError: the server raises one."""
        if ctx.request_id is not None and ctx.method == "tools/call":
            return await self._called(ctx, call_next)
        if ctx.request_id is not None and ctx.method == "tools/list":
            listed = await listed_page(self._guard, ctx, call_next)
            shown = await self._guard.avisible([tool["name"] for tool in listed["tools"]], ctx)
            own = {"ttlMs": 0, "cacheScope": "private"} if ctx.protocol_version >= _NEW else {}
            return {**listed, "tools": [tool for tool in listed["tools"] if tool["name"] in shown], **own}
        return await call_next(ctx)

    async def _called(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        params = types.CallToolRequestParams.model_validate(ctx.params or {}, by_name=False)
        await look(self._guard, ctx, call_next, params.name)
        if isinstance(call_next, partial):  # as the SDK binds the next middleware
            self._guard.leave_out(
                params.name, f"{call_next.args[0]} would run after its decision: put that before ours"
            )
        call = FrameworkCall(params.name, params.arguments or {}, str(ctx.request_id), ctx, pauses=False)
        own = own_of(outcome := await self._guard.acall(call, running(ctx, call_next), content))
        return told(outcome, self._page, ctx, params) if own is None else dict(own)


async def look(guard: ToolGuard, ctx: Context, call_next: CallNext, name: str) -> None:
    """Compare a tool with the manifest before a call of it: the server may have replaced it since it was listed."""
    params = {key: value for key, value in (ctx.params or {}).items() if key == "_meta"}
    for _ in range(_PAGES if name in guard.manifest.tools else 0):
        page = await listed_page(guard, replace(ctx, method="tools/list", params=params), call_next)
        if any(tool["name"] == name for tool in page["tools"]):
            return
        if (cursor := page.get("nextCursor")) is None:
            break
        params["cursor"] = cursor
    guard.leave_out(name, "its server does not list it")


async def listed_page(guard: ToolGuard, ctx: Context, call_next: CallNext) -> dict[str, Any]:
    """Return a page of the server's list of tools, which are compared with the manifest."""
    page: Any = await call_next(ctx)
    guard.check({tool["name"]: tool["inputSchema"] for tool in page["tools"]}, in_run=True)
    return dict(page)


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


def content(result: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a `tools/call` result that is the tool's own."""
    return {key: result[key] for key in ("content", "structuredContent") if key in result}
