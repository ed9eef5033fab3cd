"""Middleware for servers of the MCP SDK: it decides each `tools/call` and filters `tools/list`.

In a request's context, trust only the verified token, because the client writes `meta`, `params` and client info.
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

_NEW: Final = "2026-07-28"  # The first protocol revision in which a result can ask the client for input.
_PAGES: Final = 100


class InputAskedError(ToolUnavailableError):
    """The tool asks the client for input before the tool has any effect. `result` is the server's result."""

    def __init__(self, result: Any) -> None:
        super().__init__("the tool asks the client for input", details={"effect": "none"})
        self.result = result


class McpMiddleware:
    """Runs a server's tool on ALLOW only, with the decided arguments.

    Add this middleware last, so that no other middleware changes a decided call.

    A held call is answered with an error that names the approval, and the client repeats the call. A tool that the
    server does not list is not called. Extensions of the server, and `MCPServer.call_tool` in your own code, are not
    decided.

    Args:
        pep: decides the calls.
        session: one session for all calls, or a function of the SDK's `ServerRequestContext`.
        page: the start of the URL of your own approval page; the approval's id is appended. By default, the approval's
            page in the console. A client that can open pages is sent to this URL. Opening the page, or accepting in the
            client, does not grant the approval.

    Raises:
        UsageError: see `ToolGuard`.

    Example::

        server.middleware.append(McpMiddleware(pep, lambda ctx: {"claims": ctx.request.user.access_token.claims}))
    """

    def __init__(self, pep: Pep, session: SessionSource, *, page: str | None = None) -> None:
        self._guard, self._page = ToolGuard(pep, session), page

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Decide `tools/call`, filter `tools/list`, and pass other messages on. Raise the server's `MCPError`."""
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
        await check_before_call(self._guard, ctx, call_next, params.name)
        # The SDK binds the next middleware with `partial`, so a partial here means that another middleware follows.
        if isinstance(call_next, partial):
            self._guard.leave_out(
                params.name,
                f"{call_next.args[0]} would run after the decision: add this middleware before McpMiddleware",
            )
        call = FrameworkCall(params.name, params.arguments or {}, str(ctx.request_id), ctx, pauses=False)
        own = server_result(outcome := await self._guard.acall(call, tool_runner(ctx, call_next), content))
        return client_result(outcome, self._page, ctx, params) if own is None else dict(own)


async def check_before_call(guard: ToolGuard, ctx: Context, call_next: CallNext, name: str) -> None:
    """Compare a tool with the manifest before its call, because the server may have replaced the listed tool."""
    params = {key: value for key, value in (ctx.params or {}).items() if key == "_meta"}
    for _ in range(_PAGES if name in guard.manifest.tools else 0):
        page = await listed_page(guard, replace(ctx, method="tools/list", params=params), call_next)
        if any(tool["name"] == name for tool in page["tools"]):
            return
        if (cursor := page.get("nextCursor")) is None:
            break
        params["cursor"] = cursor
    guard.leave_out(name, "the server does not list this tool")


async def listed_page(guard: ToolGuard, ctx: Context, call_next: CallNext) -> dict[str, Any]:
    """Return a page of the server's list of tools, after comparing the tools with the manifest."""
    page: Any = await call_next(ctx)
    guard.check({tool["name"]: tool["inputSchema"] for tool in page["tools"]}, in_run=True)
    return dict(page)


def tool_runner(ctx: Context, call_next: CallNext) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """Return a function that runs a `tools/call`, and raises `ToolError` if the result reports a failure."""

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


def server_result(outcome: CallOutcome) -> Any:
    """Return the server's result, or None if the policy replaced it. Raise the server's `MCPError` again."""
    if isinstance(outcome.error, MCPError):
        raise outcome.error
    return outcome.error.result if isinstance(outcome.error, InputAskedError) else outcome.own


def client_result(
    outcome: CallOutcome, page: str | None, ctx: Any, params: types.CallToolRequestParams
) -> types.InputRequiredResult | types.CallToolResult:
    """Return the client's result if the server has none. For a held call, first ask to open the approval page."""
    text, approval = outcome.text, outcome.approval
    if outcome.kind is OutcomeKind.RAN and isinstance(outcome.value, dict) and "content" in outcome.value:
        return types.CallToolResult.model_validate(outcome.value)
    url = approval and (approval.url if page is None else f"{page}{approval.id}")
    if url:
        declared = ctx.session.client_capabilities if ctx and ctx.protocol_version >= _NEW else None
        if declared and declared.elicitation and declared.elicitation.url and not params.input_responses:
            asked = types.ElicitRequestURLParams(message=text, url=url)
            return types.InputRequiredResult(input_requests={"approval": types.ElicitRequest(params=asked)})
        text = text if url in text else f"{text} Approve it at {url}"
    # A dropped call is also returned as an error, because clients check all other results against the tool's output
    # schema.
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=outcome.kind is not OutcomeKind.RAN)


def content(result: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `tools/call` result that the tool wrote: `content` and `structuredContent`."""
    return {key: result[key] for key in ("content", "structuredContent") if key in result}
