"""FastMCP servers: a middleware that decides each call of a tool and filters the list.

`session` is one for all callers (a server over stdio has one), or a function of FastMCP's `Context`. Who calls is in
the token that the server's `auth` has verified: `get_access_token().claims`, of `fastmcp.server.dependencies`. What
else there is of the request (`_meta`, headers, the client's info) are the client's own words.

A tool is decided by the name that this server lists it by: with its prefix, where it is mounted or behind a proxy; as
transformed. Resources and prompts are no tools, and left to the server.
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

    from pdp.adapters.mcp import InputAskedError, own_of, told


_HOOKS: Final = {name: getattr(Middleware, name) for name in ("__call__", "on_call_tool", "on_message", "on_request")}
_HOOKS["intercept_tool_call"] = ServerExtension.intercept_tool_call


class FastMcpMiddleware(Middleware):
    """Lets the server run a tool on ALLOW alone. It is the last middleware: none may change what was decided.

    Args:
        page: as of `McpMiddleware`.

    Errors as of `ToolGuard`.
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
        """Return what a call came to; MCPError: the server raises one."""
        params, ctx = context.message, context.fastmcp_context
        if ctx is None or (params.meta or {}).get("fastmcp"):
            return ToolResult("a call is guarded in a request, and of the newest version of a tool", is_error=True)
        tool = await ctx.fastmcp.get_tool(params.name)
        self._check([] if tool is None else [tool])
        if (between := await _between(self, ctx.fastmcp, tool)) is not None:
            why = f"{between} would run between its decision and its body: put that before the guard"
            self._guard.leave_out(params.name, why)

        async def run(decided: dict[str, Any]) -> ToolResult:
            return await _ran(call_next, context.copy(message=params.model_copy(update={"arguments": decided})))

        request = ctx.request_context
        call_id = None if request is None else str(request.request_id)
        call = FrameworkCall(params.name, params.arguments or {}, call_id, ctx, pauses=False)
        outcome = await self._guard.acall(call, run, _content)
        if (own := own_of(outcome)) is not None:
            return own
        answer = told(outcome, self._page, request, params)
        asks = answer.result_type == "input_required"
        return InputRequiredToolResult(answer) if asks else ToolResult.from_mcp_result(answer)

    def _check(self, tools: Sequence[Tool]) -> None:
        """Compare tools with the manifest, each time: the server may have replaced one."""
        self._guard.check({tool.name: tool.parameters for tool in tools}, in_run=True)
        for tool in tools:
            if tool.name in self._guard.manifest.tools and tool.task_config.supports_tasks():
                self._guard.leave_out(tool.name, "it can run as a task, whose result is not guarded: state task=False")


async def _between(guard: FastMcpMiddleware, server: FastMCP, tool: Tool | None) -> str | None:
    """Return what runs between the decision and the body: middleware or an extension, also of a mounted server."""
    inner: list[Any] = server.middleware[server.middleware.index(guard) + 1 :]
    inner += server._extensions.values()  # noqa: SLF001 - FastMCP has no other way to see them
    while tool is not None:
        child = getattr(tool, "_server", None)
        if child is not None:
            inner += [*child.middleware, *child._extensions.values()]  # noqa: SLF001 - as above
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
