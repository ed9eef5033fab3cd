"""What a client is served: the servers' tools, resources and prompts, each use of which is decided and recorded."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from pdp import __version__
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.flow.preview import Visibility
from pdp.gateway.draft import GET_PROMPT, READ_RESOURCE
from pdp.gateway.pins import PinnedEngine, read_pinned, unchanged
from pdp.gateway.principal import session_of_project
from pdp.gateway.upstream import Upstream, UpstreamError
from pdp.manifest.exports import export_tools
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mcp.server.context import ServerRequestContext

    from pdp.evaluation import Evaluation
    from pdp.gateway.config import GatewaySettings
    from pdp.session import Session

DENIED: Final = 403
"""The JSON-RPC code of what is denied and has no result to say so; outside the range that JSON-RPC reserves."""

_COMPLETE: Final = {"resultType": "complete"}

_log = logging.getLogger("pdp.gateway")


class ErrorResultError(UpstreamError):
    """A tool ran, and its result says that it failed. `result`: as of `CallToolResult`."""

    def __init__(self, result: dict[str, Any]) -> None:
        texts = (block["text"] for block in result["content"] if block.get("type") == "text")
        super().__init__("\n".join(texts) or "the tool failed")
        self.result = result


class Gateway:
    """The servers behind one enforcement point. They are connected when they are first needed.

    UsageError: a file is missing or faulty; BundleError, EngineError, StoreError: what they name cannot be used.
    """

    def __init__(self, settings: GatewaySettings, owned: ExitStack) -> None:
        project = read_project(settings.project)
        if project.store is None:
            raise UsageError(f"{settings.project}: states no store", hint="add `store: sqlite:///gateway.db`")
        self._settings = settings
        self._pins = pins = read_pinned(settings.pins)
        self._upstreams = {name: Upstream(name, server, settings.timeout) for name, server in settings.servers.items()}
        self._routes = {
            settings.public(server, tool): (self._upstreams[server], tool)
            for server, tools in pins.items()
            if server in settings.servers
            for tool in tools
        }
        self._calls: set[asyncio.Task[Evaluation]] = set()
        manifest = manifest_of_project(settings.project, project)
        self._session = session_of_project(project, in_run=manifest.tracks_flow)
        stores = open_stores(project.store, owned)
        audit = stores.open_audit()
        owned.callback(audit.close)
        self._engine = PinnedEngine(engine_of_project(project, manifest, owned))
        self._engine.unchanged |= {READ_RESOURCE, GET_PROMPT}
        functions: dict[str, Callable[..., Awaitable[Any]]] = {
            READ_RESOURCE: self._read_resource, GET_PROMPT: self._get_prompt,
        }  # fmt: skip
        functions |= {name: self._forward(*route) for name, route in self._routes.items()}
        tools = {name: function for name, function in functions.items() if name in manifest.tools}
        self._pep = Pep(manifest, self._engine, audit=audit, tools=tools, **stores_of_pep(stores))

    async def close(self) -> None:
        """Let calls that are under way be recorded, and end the connections to servers."""
        if self._calls:
            await asyncio.wait(self._calls)
        for upstream in self._upstreams.values():
            await upstream.close()

    def server(self) -> Server[Any]:
        """Return what serves clients. Its methods are these, discovery and ping; any other is refused."""
        server: Server[Any] = Server("pdp-mcp-gateway", version=__version__, get_tool_input_schema=self._input_schema)
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        return server

    def _input_schema(self, name: str) -> Any:
        tool = self._pep.manifest.tools.get(name)
        return None if tool is None else tool.schema_

    async def _list_tools(self, ctx: ServerRequestContext[Any], _: Any) -> dict[str, Any]:
        await asyncio.gather(*map(self._verified, self._upstreams.values()))
        visible = await self._pep.avisible_tools(self._session_of(ctx))
        shown = [
            self._pep.manifest.tools[name]
            for name in self._routes
            if visible.get(name, Visibility.NEVER) != Visibility.NEVER
        ]
        tools = [{**self._beside(tool["name"]), **tool} for tool in export_tools(shown, "mcp")]
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private", **_COMPLETE}

    def _beside(self, name: str) -> dict[str, Any]:
        """Return what a tool's server declares beside what the manifest says, as far as every client takes it."""
        upstream, tool = self._routes[name]
        pinned = self._pins[upstream.name][tool]
        kept: dict[str, Any] = {key: pinned[key] for key in ("title", "annotations") if key in pinned}
        return (
            kept
            if pinned.get("outputSchema", {}).get("type") != "object"
            else {**kept, "outputSchema": pinned["outputSchema"]}
        )

    async def _call_tool(self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> dict[str, Any]:
        route = self._routes.get(params.name)
        if route is not None and route[0].changed:
            await self._verified(route[0])
        evaluation = await self._made(ctx, params.name, params.arguments or {})
        result = evaluation.result
        if isinstance(result, dict) and "content" in result:
            return {**result, **_COMPLETE}
        answer, error = evaluation.answer, evaluation.error
        if isinstance(error, ErrorResultError) and not evaluation.obligations:
            return {**error.result, "isError": True, **_COMPLETE}
        return {"content": [{"type": "text", "text": answer.text}], "isError": answer.is_error, **_COMPLETE}

    async def _made(self, ctx: ServerRequestContext[Any], tool: str, arguments: dict[str, Any]) -> Evaluation:
        """Return what a call came to. When its client gives it up, it is cancelled, and recorded all the same."""
        session, proposal = self._session_of(ctx), {"tool": tool, "arguments": arguments}
        call = asyncio.create_task(self._pep.acall(proposal, session, tool_call_id=str(ctx.request_id)))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _session_of(self, _: ServerRequestContext[Any]) -> Session:
        return self._session

    async def _verified(self, upstream: Upstream) -> None:
        """Ask a server what it declares now; of one that does not say, no tool is as it is pinned."""
        self._engine.unchanged -= {name for name, (server, _) in self._routes.items() if server is upstream}
        try:
            tools = await upstream.listed("tools")
        except ToolError as error:
            _log.warning("%s", error.message)
            return
        upstream.changed = False
        pinned = self._pins[upstream.name]
        same = unchanged(pinned, tools)
        self._engine.unchanged |= {self._settings.public(upstream.name, name) for name in same}
        for name in sorted({tool.name for tool in tools} | pinned.keys() - same):
            if name not in same:
                _log.warning(
                    "server %s: the tool %r is not as pinned, and hidden: see pdp mcp-gateway pin", upstream.name, name
                )

    def _forward(self, upstream: Upstream, tool: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Return the function that has a server run one of its tools."""

        async def forward(**arguments: Any) -> dict[str, Any]:
            params = types.CallToolRequestParams(name=tool, arguments=arguments)
            answer = await upstream.ask(types.CallToolRequest(params=params), types.CallToolResult)
            whole = _complete(upstream, answer)
            result: dict[str, Any] = {key: whole[key] for key in ("content", "structuredContent") if key in whole}
            if answer.is_error:
                raise ErrorResultError(result)
            return result

        return forward

    async def _read_resource(self, uri: str, server: str | None = None) -> dict[str, Any]:
        raise NotImplementedError

    async def _get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> dict[str, Any]:
        raise NotImplementedError


def _complete(upstream: Upstream, answer: Any) -> dict[str, Any]:
    """Return an answer as JSON; UpstreamError: it is none that ends the request."""
    if answer.result_type != "complete":
        message = f"server {upstream.name} answers {answer.result_type!r:.40}, which is not a result"
        raise UpstreamError(message, details={"effect": "unknown"})
    whole: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return whole


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Open a gateway for the time of a block; errors as of `Gateway`."""
    with ExitStack() as owned:
        gateway = Gateway(settings, owned)
        try:
            yield gateway
        finally:
            await gateway.close()


async def serve_stdio(settings: GatewaySettings) -> None:
    """Serve one client over standard input and output until it closes them; errors as of `Gateway`."""
    async with open_gateway(settings) as gateway, stdio_server() as (read, write):
        server = gateway.server()
        await server.run(read, write, server.create_initialization_options())
