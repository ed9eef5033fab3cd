"""Middleware for FastMCP servers: it decides each tool call and filters the list of tools.

The policy sees the tool name that this server lists, with the prefix of a mounted or proxied server, and transformed.
Resources and prompts are not decided.
"""

from collections.abc import Sequence
from typing import Any, Final

from pdp.adapters.guard.guard import FrameworkCall, SessionSource, ToolGuard
from pdp.execution.failures import ToolError
from pdp.installed import extra
from pdp.pep import Pep

with extra("fastmcp"):
    import mcp_types as types
    from fastmcp import FastMCP
    from fastmcp.exceptions import FastMCPError
    from fastmcp.server.extensions import ServerExtension
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.utilities.versions import dedupe_with_versions

    from pdp.adapters.mcp import InputAskedError, client_result, server_result


_HOOKS: Final = {name: getattr(Middleware, name) for name in ("__call__", "on_call_tool", "on_message", "on_request")}
_HOOKS["intercept_tool_call"] = ServerExtension.intercept_tool_call


class FastMcpMiddleware(Middleware):
    """Runs a server's tool on ALLOW only, with the decided arguments.

    Add this middleware last, so that no other middleware changes a decided call.

    A held call is answered with an error that names the approval, and the client repeats the call. A client of MCP
    2026-07-28 that can open pages is sent to the approval's page. If later middleware, middleware of a mounted server
    or an extension would see a call, the call is denied. Tools with `task=True` are left out, and older versions are
    denied.

    Args:
        pep: decides the calls.
        session: one session, if there is one caller, as over stdio; or a function of FastMCP's `Context`. Take the
            caller from the token that `auth` verified: `get_access_token().claims` of `fastmcp.server.dependencies`.
            The client writes `_meta`, headers and client info, so do not trust these.
        page: see `McpMiddleware`.

    Raises:
        UsageError: see `ToolGuard`.

    Example::

        server = FastMCP("payments", auth=auth, middleware=[FastMcpMiddleware(pep, session)])
    """

    def __init__(self, pep: Pep, session: SessionSource, *, page: str | None = None) -> None:
        self._guard, self._page = ToolGuard(pep, session), page

    async def on_list_tools(
        self, context: MiddlewareContext[types.ListToolsRequest], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        """Return the tools that the caller can ever use."""
        tools = await call_next(context)
        self._check(dedupe_with_versions(list(tools), lambda tool: tool.name))
        shown = await self._guard.avisible({tool.name for tool in tools}, context.fastmcp_context)
        return [tool for tool in tools if tool.name in shown]

    async def on_call_tool(
        self, context: MiddlewareContext[types.CallToolRequestParams], call_next: CallNext[Any, Any]
    ) -> ToolResult:
        """Decide a call, run it on ALLOW, and return the result. An `MCPError` of the server is raised unchanged."""
        params, ctx = context.message, context.fastmcp_context
        if ctx is None or (params.meta or {}).get("fastmcp"):
            return ToolResult(
                "only the newest version of a tool can be called, and only by a request of a client", is_error=True
            )
        tool = await ctx.fastmcp.get_tool(params.name)
        self._check([] if tool is None else [tool])
        if (between := await _between(self, ctx.fastmcp, tool)) is not None:
            why = f"{between} would run between the decision and the tool: add {between} before FastMcpMiddleware"
            self._guard.leave_out(params.name, why)

        async def run(decided: dict[str, Any]) -> ToolResult:
            return await _ran(call_next, context.copy(message=params.model_copy(update={"arguments": decided})))

        request = ctx.request_context
        call_id = None if request is None else str(request.request_id)
        call = FrameworkCall(params.name, params.arguments or {}, call_id, ctx, pauses=False)
        outcome = await self._guard.acall(call, run, _content)
        if (own := server_result(outcome)) is not None:
            return own
        answer = client_result(outcome, self._page, request, params)
        asks = answer.result_type == "input_required"
        return InputRequiredToolResult(answer) if asks else ToolResult.from_mcp_result(answer)

    def _check(self, tools: Sequence[Tool]) -> None:
        """Compare tools with the manifest before each use, because the server may have replaced a tool."""
        self._guard.check({tool.name: tool.parameters for tool in tools}, in_run=True)
        for tool in tools:
            if tool.name in self._guard.manifest.tools and tool.task_config.supports_tasks():
                self._guard.leave_out(
                    tool.name, "the tool can run as a task, whose result is not guarded: set task=False"
                )


async def _between(guard: FastMcpMiddleware, server: FastMCP, tool: Tool | None) -> str | None:
    """Return the class name of an extension or middleware that would run between decision and tool, if any."""
    inner: list[Any] = server.middleware[server.middleware.index(guard) + 1 :]
    inner += server._extensions.values()  # noqa: SLF001 - FastMCP has no public list of extensions
    while tool is not None:
        child = getattr(tool, "_server", None)
        if child is not None:
            inner += [*child.middleware, *child._extensions.values()]  # noqa: SLF001 - the same for a mounted server
        name = getattr(tool, "_original_name", "")
        tool = getattr(tool, "parent_tool", None) if child is None else await child.get_tool(name)
    kinds = (type(each) for each in inner if any(getattr(type(each), at, own) is not own for at, own in _HOOKS.items()))
    return next((kind.__name__ for kind in kinds), None)


async def _ran(call_next: CallNext[Any, Any], context: MiddlewareContext[Any]) -> ToolResult:
    try:
        result = await call_next(context)
    except FastMCPError as error:
        raise ToolError(str(error)) from error
    if isinstance(result, InputRequiredToolResult):
        raise InputAskedError(result)
    if result.is_error:
        raise ToolError("\n".join(getattr(block, "text", "") for block in result.content) or "the tool failed")
    return result


def _content(result: ToolResult) -> dict[str, Any]:
    structured = {} if result.structured_content is None else {"structuredContent": result.structured_content}
    blocks = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
    return {"content": blocks, **structured}
