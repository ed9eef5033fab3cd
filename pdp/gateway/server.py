"""What a client is served: the servers' tools, resources and prompts, each use of which is decided and recorded."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import mcp_types as types
import uvloop
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.routing import Mount

from pdp import __version__
from pdp.decision import Verdict
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.flow.preview import Visibility
from pdp.gateway.mapping import GET_PROMPT, NEW, READ_RESOURCE
from pdp.gateway.pending import DENIED, Pending
from pdp.gateway.pins import PinnedEngine, declarations, left_out, read_pinned, unchanged
from pdp.gateway.principal import Callers, Verifier
from pdp.gateway.upstream import Upstream, UpstreamError
from pdp.json import thawed
from pdp.manifest.exports import export_tools
from pdp.manifest.foreign.dialects import translated
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mcp.server.context import ServerRequestContext
    from pydantic import BaseModel

    from pdp.evaluation import Evaluation
    from pdp.gateway.config import GatewaySettings
    from pdp.gateway.pending import Answer
    from pdp.service.security.principal import Authenticator
    from pdp.service.settings import ServiceSettings
    from pdp.stores.approvals import Approval

    Context = ServerRequestContext[Any]
    Show = Callable[[Context, Evaluation], Answer]

_PATH: Final = "/mcp"
_MOST_IDS: Final = 10_000
_ENVELOPE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_LISTED: Final = {"resources": "resources", "resource_templates": "resourceTemplates", "prompts": "prompts"}

_log = logging.getLogger("pdp.gateway")


class ErrorResultError(UpstreamError):
    """A tool ran, and its result says that it failed. `result`: as of `CallToolResult`."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("\n".join(block.get("text", "") for block in result["content"]) or "the tool failed")
        self.result = result


class Gateway:
    """The servers behind one enforcement point; they are connected when they are first needed.

    UsageError: a file is missing or faulty; BundleError, EngineError, StoreError: what they name cannot be used.
    """

    def __init__(self, settings: GatewaySettings, owned: ExitStack) -> None:
        project = read_project(settings.project)
        if project.store is None or project.session is None:
            raise UsageError(f"{settings.project}: states no store or session", hint="name both; see docs/gateway.md")
        self._pins = read_pinned(settings)
        manifest = manifest_of_project(settings.project, project)
        self._callers = Callers(project.session, in_run=manifest.tracks_flow)
        self._public = settings.public
        self._upstreams = {name: Upstream(name, each, settings.timeout) for name, each in settings.servers.items()}
        self._routes = {
            self._public(server, name): (self._upstreams[server], tool)
            for server, tools in self._pins.items()
            for name, tool in tools.items()
        }
        self._engine = PinnedEngine(engine_of_project(project, manifest, owned))
        stores = open_stores(project.store, owned)
        audit = stores.open_audit()
        owned.callback(audit.close)
        own: dict[str, Callable[..., Any]] = {READ_RESOURCE: self._read, GET_PROMPT: self._get}
        functions = {name: partial(self._forward, *route) for name, route in self._routes.items()} | own
        known = {name: functions[name] for name in functions.keys() & manifest.tools.keys()}
        opened = stores_of_pep(stores)
        self._pep = Pep(manifest, self._engine, audit=audit, tools=known, **opened)
        exported = export_tools((manifest.tools[name] for name in self._routes if name in manifest.tools), "mcp")
        self._shown_as = {tool["name"]: self._routes[tool["name"]][1] | tool for tool in exported}
        for name, tool in self._shown_as.items():
            declared = self._routes[name][1]["inputSchema"]
            if thawed(manifest.tools[name].schema_) == translated(declared).schema:
                tool["inputSchema"] = declared  # else a person has narrowed it
        self._hidden: dict[str, set[str]] = {}
        self._pending = Pending(settings, opened["approvals"], opened["remote_calls"])
        self._calls: set[asyncio.Task[Evaluation]] = set()
        self._ids: dict[Any, None] = {}

    def server(self) -> Server[Any]:
        """Return what serves clients; mapping.py has its methods."""
        server: Server[Any] = Server("pdp-mcp-gateway", version=__version__, get_tool_input_schema=self._schema)
        add, page = server.add_request_handler, types.PaginatedRequestParams
        add("tools/list", page, self._list_tools)
        add("tools/call", types.CallToolRequestParams, self._call_tool)
        add("resources/list", page, partial(self._list, "resources", READ_RESOURCE))
        add("resources/templates/list", page, partial(self._list, "resource_templates", READ_RESOURCE))
        add("resources/read", types.ReadResourceRequestParams, self._read_resource)
        add("prompts/list", page, partial(self._list, "prompts", GET_PROMPT))
        add("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        self._pending.serve(server)
        return server

    async def close(self) -> None:
        """Wait until calls that are under way are recorded, and end the connections to servers."""
        if self._calls:
            await asyncio.wait(self._calls)
        await asyncio.gather(*(upstream.close() for upstream in self._upstreams.values()))

    def _schema(self, name: str) -> Any:
        """Return the schema that says which headers mirror which arguments of a call: they have to agree."""
        return self._shown_as[name]["inputSchema"] if name in self._shown_as else None

    async def _list_tools(self, ctx: Context, _: Any) -> dict[str, Any]:
        lost = [fault for fault in await asyncio.gather(*map(self._verify, self._upstreams.values())) if fault]
        if lost and self._engine.unchanged.isdisjoint(self._routes):
            raise MCPError(types.INTERNAL_ERROR, "; ".join(lost))
        visible = await self._pep.avisible_tools(self._callers.session(ctx))
        names = [name for name in self._shown_as if visible.get(name, Visibility.NEVER) is not Visibility.NEVER]
        return {"tools": [self._shown_as[name] for name in names], **_ENVELOPE}

    async def _list(self, kind: str, tool: str, ctx: Context, _: Any) -> dict[str, Any]:
        visible = await self._pep.avisible_tools(self._callers.session(ctx))
        items = []
        for upstream in self._upstreams.values() if visible.get(tool, Visibility.NEVER) != Visibility.NEVER else ():
            for item in await self._listed(upstream, kind) or ():
                named = {"name": self._public(upstream.name, item.name)} if kind == "prompts" else {}
                items.append(_as_json(item) | named)
        return {_LISTED[kind]: items, **_ENVELOPE}

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        if params.name in (READ_RESOURCE, GET_PROMPT):
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await self._answer(ctx, params, self._shown, params.name, params.arguments or {})

    def _shown(self, ctx: Context, evaluation: Evaluation) -> dict[str, Any]:
        """Return the result of a tool's call."""
        result, error, answer = evaluation.result, evaluation.error, evaluation.answer
        if isinstance(error, ErrorResultError) and not evaluation.obligations and not self._pep.manifest.tracks_flow:
            result = error.result | {"isError": True}
        if not isinstance(result, dict) or "content" not in result:
            result = {"content": [{"type": "text", "text": answer.text}], "isError": answer.is_error}
        structured = result.get("structuredContent")
        if ctx.protocol_version < NEW and not isinstance(structured, dict):  # what those revisions do not know
            result = {key: value for key, value in result.items() if key != "structuredContent"}
        return {**result, "resultType": "complete"}

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        servers = list(self._upstreams)
        if len(servers) > 1:
            listed = {name: await self._listed(each, "resources") or () for name, each in self._upstreams.items()}
            servers = [name for name, items in listed.items() if params.uri in {str(item.uri) for item in items}]
        if len(servers) != 1:
            raise MCPError(types.INVALID_PARAMS, f"{len(servers)} servers list this resource: {params.uri:.200}")
        return await self._answer(ctx, params, _content, READ_RESOURCE, {"server": servers[0], "uri": params.uri})

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        server, _, name = params.name.partition("__")
        if len(self._upstreams) == 1:
            server, name = next(iter(self._upstreams)), params.name
        if server not in self._upstreams:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name:.200}")
        asked = {"server": server, "name": name, "arguments": params.arguments or {}}
        return await self._answer(ctx, params, _content, GET_PROMPT, asked)

    async def _answer(self, ctx: Context, params: Any, show: Show, tool: str, arguments: dict[str, Any]) -> Answer:
        if ctx.request is None:
            if ctx.request_id in self._ids:
                raise MCPError(types.INVALID_REQUEST, "a request had this id before, and its call is not made again")
            self._ids[ctx.request_id] = None
            if len(self._ids) > _MOST_IDS:
                del self._ids[next(iter(self._ids))]
        return await self._pending.answer(ctx, params, partial(self._made, show, tool, arguments))

    async def _made(self, show: Show, tool: str, arguments: dict[str, Any], ctx: Context) -> Answer | Approval:
        """Return what a call came to. When its client gives it up, it is cancelled, and recorded all the same."""
        if tool in self._routes and ((upstream := self._routes[tool][0]).changed or upstream.is_lost):
            await self._verify(upstream)
        session, proposal = self._callers.session(ctx), {"tool": tool, "arguments": arguments}
        call = asyncio.create_task(self._pep.acall(proposal, session, tool_call_id=str(ctx.request_id)))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            made = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        return made.approval if made.verdict is Verdict.STEP_UP and made.approval else show(ctx, made)

    async def _listed(self, upstream: Upstream, kind: str) -> list[Any] | None:
        """Return what a server lists; None: it does not say."""
        try:
            return await upstream.listed(kind)
        except ToolError as error:
            _log.warning("%s", error.message)
            return None

    async def _verify(self, upstream: Upstream) -> str:
        """Ask a server what it declares now; of one that does not say, no tool is as it is pinned.

        Return that it has tools and none can be used; empty where that is not so.
        """
        tools = await self._listed(upstream, "tools")
        upstream.changed |= tools is None
        pinned = self._pins[upstream.name]
        same = unchanged(pinned, tools or ())
        self._engine.unchanged -= {self._public(upstream.name, name) for name in pinned}
        self._engine.unchanged |= {self._public(upstream.name, name) for name in same}
        hidden = ({tool.name for tool in tools or ()} | pinned.keys()) - same
        for name in sorted(hidden - self._hidden.get(upstream.name, set())):
            why: str | None = "it is not as it is pinned"
            if name not in pinned:
                why = left_out(declarations(tools or ()).get(name)) or "it is new"
            _log.warning("server %s: tool %.200r is left out: %s; see pdp mcp-gateway pin", upstream.name, name, why)
        self._hidden[upstream.name] = hidden
        if not tools or same:
            return ""
        return f"server {upstream.name} has {len(tools)} tools, and none can be used: its gateway's log says why"

    @staticmethod
    async def _forward(upstream: Upstream, tool: Mapping[str, Any], /, **arguments: Any) -> dict[str, Any]:
        params = types.CallToolRequestParams(name=tool["name"], arguments=arguments)
        answer = await upstream.ask(types.CallToolRequest(params=params), types.CallToolResult, only_if_listed=True)
        result = {key: at for key, at in _as_json(answer).items() if key in ("content", "structuredContent")}
        if answer.is_error:
            raise ErrorResultError(result)
        return result

    async def _read(self, server: str, uri: str) -> dict[str, Any]:
        request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
        return _as_json(await self._upstreams[server].ask(request, types.ReadResourceResult))

    async def _get(self, server: str, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        request = types.GetPromptRequest(params=types.GetPromptRequestParams(name=name, arguments=arguments))
        return _as_json(await self._upstreams[server].ask(request, types.GetPromptResult))


def _content(_: Context, evaluation: Evaluation) -> dict[str, Any]:
    """Return the result of a resource or prompt; MCPError: there is none."""
    if not isinstance(evaluation.result, dict):
        raise MCPError(DENIED, evaluation.answer.text)
    return {**evaluation.result, **_ENVELOPE}


def _as_json(answer: BaseModel) -> dict[str, Any]:
    """Return what is passed on of an answer: not what its server adds for programs alone."""
    whole = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {key: value for key, value in whole.items() if key not in ("_meta", "icons")}


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Open a gateway for the time of a block; errors as of `Gateway`."""
    with ExitStack() as owned:
        gateway = Gateway(settings, owned)
        try:
            yield gateway
        finally:
            await gateway.close()


def serve_stdio(settings: GatewaySettings) -> None:
    """Serve one client over standard input and output until it closes them; errors as of `Gateway`."""

    async def serve() -> None:
        async with open_gateway(settings) as gateway, stdio_server() as (read, write):
            server = gateway.server()
            await server.run(read, write, server.create_initialization_options())

    try:
        uvloop.run(serve())
    except* BrokenPipeError:
        _log.info("the client is gone")


def http_app(settings: GatewaySettings, service: ServiceSettings) -> Starlette:
    """Return the application that serves clients at `/mcp` of a service's address, by the tokens that it knows."""
    from pdp.service.security.oidc import OidcAuthenticator  # noqa: PLC0415 - an extra that stdio does without
    from pdp.service.security.tokens import open_tokens  # noqa: PLC0415 - likewise

    host = urlsplit(service.url).netloc

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        with ExitStack() as owned:
            known: list[Authenticator] = [open_tokens(service, owned), *map(OidcAuthenticator, service.oidc)]
            issuer = service.oidc[0].issuer if service.oidc else service.url
            async with open_gateway(settings) as gateway:
                server = gateway.server()
                served = server.streamable_http_app(
                    streamable_http_path=_PATH,
                    transport_security=TransportSecuritySettings(allowed_hosts=[host], allowed_origins=[service.url]),
                    auth=AuthSettings(
                        issuer_url=AnyHttpUrl(issuer),
                        resource_server_url=AnyHttpUrl(service.url + _PATH) if service.oidc else None,
                        required_scopes=["propose"],
                        validate_token_resource=False,  # each authenticator checks the audience
                    ),
                    token_verifier=Verifier(known),
                )
                app.router.routes.append(Mount("/", served))
                async with server.session_manager.run():
                    yield {"ending": asyncio.Event()}

    return Starlette(lifespan=lifespan)
