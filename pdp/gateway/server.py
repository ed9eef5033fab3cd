"""Serve tools, resources and prompts to clients. Each use is decided and recorded."""

import asyncio
import json
import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from itertools import accumulate
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import mcp_types as types
import uvloop
from mcp.server.auth.settings import AuthSettings
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.request_state import authenticated_principal
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_from_wire
from pydantic import AnyHttpUrl, BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from pdp import __version__
from pdp.decision import Verdict
from pdp.errors import UsageError
from pdp.execution.failures import ToolError
from pdp.execution.telemetry import Telemetry
from pdp.flow.evaluation import Evaluation
from pdp.flow.preview import Visibility
from pdp.gateway.config import GatewaySettings
from pdp.gateway.methods import GET_PROMPT, NEW, READ_RESOURCE
from pdp.gateway.pending import DENIED, Answer, Pending
from pdp.gateway.pins import INSTRUCTIONS, PinnedEngine, declarations, left_out, read_pinned, unchanged
from pdp.gateway.principal import Callers, Verifier
from pdp.gateway.upstream import ASKING, Asking, Upstream, UpstreamError, notify_client
from pdp.json import thawed
from pdp.manifest.exports import export_tools
from pdp.manifest.foreign.dialects import translated
from pdp.pep import Pep
from pdp.project.file import engine_of_project, manifest_of_project, read_project
from pdp.project.resources import open_stores, stores_of_pep
from pdp.service.security.principal import Authenticator
from pdp.service.settings import ServiceSettings
from pdp.stores.approvals import Approval

Context = ServerRequestContext[Any]
Show = Callable[[Context, Evaluation], Answer]

_PATH: Final = "/mcp"
_MOST_IDS: Final = 10_000
_START_SECONDS: Final = 30.0  # Clients wait at most this many seconds for servers to start.
_ENVELOPE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_RESERVED: Final = ("io.modelcontextprotocol/", "tool-pdp/")  # Prefixes of `_meta` keys that servers must not set.
_ENVELOPE_BYTES: Final = 64 * 1024  # The maximum bytes of a result in addition to its content.
_UNPINNED: Final = {"execution", "icons", "_meta"}  # Fields of a tool that are passed to clients without being pinned.
_LISTED: Final = {"resources": "resources", "resource_templates": "resourceTemplates", "prompts": "prompts"}

_log = logging.getLogger("pdp.gateway")


class ErrorResultError(UpstreamError):
    """A tool ran, and its result reports a failure. `result` has the fields of `CallToolResult`."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("\n".join(block.get("text", "") for block in result["content"]) or "the tool failed")
        self.result = result


class Gateway:
    """The servers behind one enforcement point. Each server is connected at its first use.

    Raises `UsageError` for a faulty file; `BundleError`, `EngineError` or `StoreError` if one of these fails to open.
    """

    def __init__(self, settings: GatewaySettings, owned: ExitStack) -> None:
        project = read_project(settings.project)
        if project.store is None or project.session is None:
            hint = "add these lines: `store: sqlite:///store.db` and `session: session.yaml`"
            raise UsageError(f"{settings.project}: `store` or `session` is missing", hint=hint)
        self._pins = read_pinned(settings)
        self._reviewed = {name: each.pop(INSTRUCTIONS, {}).get("text") for name, each in self._pins.items()}
        manifest = manifest_of_project(settings.project, project)
        self._callers = Callers(project.session, in_run=manifest.tracks_flow)
        self._public = settings.public
        self._upstreams = {
            n: Upstream(n, at, settings.timeout, self._on_notification) for n, at in settings.servers.items()
        }
        self._routes = {
            self._public(server, name): (self._upstreams[server], tool)
            for server, tools in self._pins.items()
            for name, tool in tools.items()
        }
        self._engine = PinnedEngine(engine_of_project(project, manifest, owned))
        stores = open_stores(project.store, owned)
        audit = owned.enter_context(closing(stores.open_audit()))
        own = {READ_RESOURCE: partial(self._read), GET_PROMPT: partial(self._get)}
        functions = {name: partial(self._forward, *route) for name, route in self._routes.items()} | own
        known = {name: functions[name] for name in functions.keys() & manifest.tools.keys()}
        opened = stores_of_pep(stores, project.public_url)
        for name, function in known.items():
            # `content` and `structuredContent` may each have the maximum size, because one repeats the other.
            vars(function)["max_result"] = settings.max_result * (1 if name in own else 2) + _ENVELOPE_BYTES
        once = own.keys() | {n for n, (_, at) in self._routes.items() if at.get("annotations", {}).get("readOnlyHint")}
        once |= {name for name, entry in manifest.tools.items() if not (entry.effect_class and entry.has_effects)}
        self._pep = Pep(manifest, self._engine, audit=audit, tools=known, keyless=once, telemetry=Telemetry(), **opened)
        exported = export_tools((manifest.tools[name] for name in self._routes if name in manifest.tools), "mcp")
        self._shown_as = {tool["name"]: self._routes[tool["name"]][1] | tool for tool in exported}
        for name, tool in self._shown_as.items():
            declared = self._routes[name][1]["inputSchema"]
            if thawed(manifest.tools[name].schema_) == translated(declared).schema:
                # If the manifest's schema differs, a person has narrowed it, so the server's schema is not shown.
                tool["inputSchema"] = declared
        self._hidden: dict[str, set[str]] = {}
        self._pending = Pending(settings, opened["approvals"], opened["remote_calls"])
        self._max_result, self._shared = settings.max_result, settings.http is not None or manifest.tracks_flow
        self._calls: set[asyncio.Task[Evaluation]] = set()
        self._ids: deque[Any] = deque(maxlen=_MOST_IDS)
        self._live: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self._bus = InMemorySubscriptionBus()
        # The connected clients of older protocol revisions, which cannot subscribe to a stream of changes.
        self._older: WeakSet[Connection] = WeakSet()

    async def connect(self) -> None:
        """Connect to the servers to learn their names and instructions. A server that fails is tried again later."""
        asked = [asyncio.create_task(self._verify(each)) for each in self._upstreams.values()]
        await asyncio.wait(asked, timeout=_START_SECONDS)

    def server(self) -> Server[Any]:
        """Return the MCP server that clients use. With a single server behind it, clients see that server's name."""
        known = [each.client for each in self._upstreams.values() if each.client is not None]
        info = known[0].server_info if len(self._upstreams) == len(known) == 1 else None
        info = info or types.Implementation(name="pdp-mcp-gateway", version=__version__)
        presented: dict[str, Any] = {key: getattr(info, key) for key in ("name", "version", "title", "icons")}
        server = _Server(**presented, instructions=self._instructions(), get_tool_input_schema=self._schema)
        server.middleware.append(self._note)
        add, page = server.add_request_handler, types.PaginatedRequestParams
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(self._bus))
        if any(client.server_capabilities.logging for client in known):
            add("logging/setLevel", types.SetLevelRequestParams, self._set_level)
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
        """Wait until running calls are recorded, then close the connections to servers."""
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(upstream.close() for upstream in self._upstreams.values()))

    def _schema(self, name: str) -> Any:
        """Return the input schema of a tool. By this schema, the SDK checks that headers match arguments."""
        return self._shown_as[name]["inputSchema"] if name in self._shown_as else None

    async def _list_tools(self, ctx: Context, _: Any) -> dict[str, Any]:
        lost = [fault for fault in await asyncio.gather(*map(self._verify, self._upstreams.values())) if fault]
        if lost and self._engine.unchanged.isdisjoint(self._routes):
            raise MCPError(types.INTERNAL_ERROR, "; ".join(lost))
        visible = await self._pep.avisible_tools(self._callers.session(ctx))
        names = [name for name in self._shown_as if visible.get(name, Visibility.NEVER) is not Visibility.NEVER]
        return {"tools": [{**self._live[name], **self._shown_as[name]} for name in names], **_ENVELOPE}

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
        return await self._answer(ctx, params, self._tool_result, params.name, params.arguments or {})

    def _tool_result(self, ctx: Context, evaluation: Evaluation) -> dict[str, Any]:
        result, error = evaluation.result, evaluation.error
        if isinstance(error, ErrorResultError) and not evaluation.obligations and not self._pep.manifest.tracks_flow:
            result = error.result | {"isError": True}
        if not isinstance(result, dict) or "content" not in result:
            answer = evaluation.answer
            result = {"content": [{"type": "text", "text": answer.text}], "isError": answer.is_error}
        # `_meta` is dropped after a redaction, because a server may repeat the redacted content there.
        if evaluation.obligations:
            result = {key: value for key, value in result.items() if key != "_meta"}
        if evaluation.replayed:
            key = evaluation.trace.idempotency_key
            note = f"Not run again: this is the stored result of an earlier call with the idempotency key {key}."
            result = {**result, "content": [{"type": "text", "text": note}, *result["content"]]}
            result["_meta"] = {**result.get("_meta", {}), "tool-pdp/replayed": True}
        structured = result.get("structuredContent")
        # Older protocol revisions allow only objects here.
        if ctx.protocol_version < NEW and not isinstance(structured, dict):
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
                raise MCPError(types.INVALID_REQUEST, "the request id was used before, so the call is not made again")
            self._ids.append(ctx.request_id)
        return await self._pending.answer(ctx, params, partial(self._make, show, tool, arguments))

    async def _make(self, show: Show, tool: str, arguments: dict[str, Any], ctx: Context) -> Answer | Approval:
        """Make a call. Return the call's result or approval. If the client cancels, cancel and record the call."""
        if tool in self._routes and ((upstream := self._routes[tool][0]).changed or upstream.is_lost):
            await self._verify(upstream)
        call = asyncio.create_task(self._call({"tool": tool, "arguments": arguments}, ctx))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            made = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        return made.approval if made.verdict is Verdict.STEP_UP and made.approval else show(ctx, made)

    async def _call(self, proposal: dict[str, Any], ctx: Context) -> Evaluation:
        ASKING.set(Asking(ctx, authenticated_principal(ctx), self._pep.manifest.tracks_flow))
        return await self._pep.acall(proposal, self._callers.session(ctx), tool_call_id=str(ctx.request_id))

    async def _note(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version < NEW:
            self._older.add(ctx.session._connection)  # noqa: SLF001 - the SDK has no public access
        return await call_next(ctx)

    async def _set_level(self, _: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        with suppress(ToolError):
            await asyncio.gather(*(each.set_level(params.level) for each in self._upstreams.values()))
        return {}

    async def _on_notification(self, upstream: Upstream, message: types.ServerNotification) -> None:
        """Forward a notification: list changes to all clients, log messages only if a single client uses the server."""
        if (event := event_from_wire(message.method, None)) is not None:
            await self._bus.publish(event)
            await self._notify_older(message.method)
        elif not isinstance(message, types.LoggingMessageNotification) or [*upstream.askers.values()] > [False]:
            # The log line names no request, so it could belong to another client's request, or to a quiet one.
            return
        elif upstream.asking:
            ctx = upstream.asking[-1].ctx
            if message.params.level in allowed_log_levels(ctx.protocol_version, ctx.meta):
                await notify_client(ctx.session.send_notification, message, ctx.request_id)
        elif not self._shared:
            await self._notify_older(message.method, _as_json(message.params))

    async def _notify_older(self, method: str, params: dict[str, Any] | None = None) -> None:
        await asyncio.gather(*(notify_client(each.notify, method, params) for each in self._older))

    def _instructions(self) -> str | None:
        texts = {name: each.client.instructions for name, each in self._upstreams.items() if each.client}
        for name in [name for name, text in texts.items() if text and text != self._reviewed[name]]:
            _log.warning(
                "server %s: its instructions differ from the pinned text and are hidden; see pdp mcp-gateway pin",
                name,
            )
            del texts[name]
        return "\n\n".join(text for text in texts.values() if text) or None

    async def _listed(self, upstream: Upstream, kind: str) -> list[Any] | None:
        try:
            return await upstream.listed(kind)
        except ToolError as error:
            _log.warning("%s", error.message)
            return None

    async def _verify(self, upstream: Upstream) -> str:
        """Compare a server's tools with the pinned tools. Return why no tool can be used, else an empty text."""
        tools = await self._listed(upstream, "tools")
        upstream.changed |= tools is None
        pinned = self._pins[upstream.name]
        for each in (at for at in map(_as_json, tools or ()) if at["name"] in pinned):
            self._live[self._public(upstream.name, each["name"])] = {key: each[key] for key in _UNPINNED & each.keys()}
        same = unchanged(pinned, tools or ())
        self._engine.unchanged -= {self._public(upstream.name, name) for name in pinned}
        self._engine.unchanged |= {self._public(upstream.name, name) for name in same}
        hidden = ({tool.name for tool in tools or ()} | pinned.keys()) - same
        for name in sorted(hidden - self._hidden.get(upstream.name, set())):
            why: str | None = "the tool differs from its pinned declaration"
            if name not in pinned:
                why = left_out(declarations(tools or ()).get(name)) or "the tool is not pinned"
            _log.warning("server %s: tool %.200r is left out: %s; see pdp mcp-gateway pin", upstream.name, name, why)
        self._hidden[upstream.name] = hidden
        if not tools or same:
            return ""
        return f"server {upstream.name} has {len(tools)} tools, but none can be used: see the gateway's log"

    async def _forward(self, upstream: Upstream, tool: Mapping[str, Any], /, **arguments: Any) -> dict[str, Any]:
        params = types.CallToolRequestParams(name=tool["name"], arguments=arguments)
        answer = await upstream.ask(types.CallToolRequest(params=params), types.CallToolResult, only_if_listed=True)
        result = {key: at for key, at in _as_json(answer).items() if key in ("content", "structuredContent", "_meta")}
        result = _within(result, self._max_result, promised="outputSchema" in tool)
        if answer.is_error:
            raise ErrorResultError(result)
        return result

    async def _read(self, server: str, uri: str) -> dict[str, Any]:
        request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
        return _as_json(await self._upstreams[server].ask(request, types.ReadResourceResult))

    async def _get(self, server: str, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        request = types.GetPromptRequest(params=types.GetPromptRequestParams(name=name, arguments=arguments))
        return _as_json(await self._upstreams[server].ask(request, types.GetPromptResult))


class _Server(Server[Any]):
    def get_capabilities(self, *given: Any, **named: Any) -> types.ServerCapabilities:
        """Announce that all lists can change, and that clients cannot subscribe to single resources."""
        can = super().get_capabilities(NotificationOptions(True, True, True), *given[1:], **named)
        return can.model_copy(update={"resources": types.ResourcesCapability(list_changed=True)})


def _within(result: dict[str, Any], most: int, *, promised: bool) -> dict[str, Any]:
    """Return a result, cut to `most` bytes. If the cut removes a `promised` structuredContent, return an error."""
    content, ends = result["content"], [*accumulate(map(_size, result["content"]))]
    size = max([*ends[-1:], _size(result.get("structuredContent"))])
    if size <= most:
        return result
    kept = bisect_right(ends, most)
    left = most - sum(ends[kept - 1 : kept])
    text = "".join(each.get("text", "") for each in content[kept : kept + 1])[:left]
    while (long := _size(text)) > left + 2:  # The two bytes are the quotes of the JSON text.
        text = text[: len(text) * left // long]
    note = f"Cut here: the result has {size} bytes, the limit is {most} (max_result in gateway.yaml). Ask for less."
    note_block = [{"type": "text", "text": f"{text}\n{note}"}]
    return {"content": content[:kept] + note_block, "isError": promised and "structuredContent" in result}


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _content(_: Context, evaluation: Evaluation) -> dict[str, Any]:
    if not isinstance(evaluation.result, dict):
        raise MCPError(DENIED, evaluation.answer.text)
    return {**evaluation.result, **_ENVELOPE}


def _as_json(answer: BaseModel) -> dict[str, Any]:
    whole = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    whole["_meta"] = {key: at for key, at in whole.get("_meta", {}).items() if not key.startswith(_RESERVED)}
    return whole if whole["_meta"] else {key: at for key, at in whole.items() if key != "_meta"}


@asynccontextmanager
async def open_gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Open a gateway until the end of a `with` block. Raises the errors of `Gateway`."""
    with ExitStack() as owned:
        gateway = Gateway(settings, owned)
        try:
            await gateway.connect()
            yield gateway
        finally:
            await gateway.close()


def serve_stdio(settings: GatewaySettings) -> None:
    """Serve one client over standard input and output, until the client closes both. Raises the errors of `Gateway`."""

    async def serve() -> None:
        async with open_gateway(settings) as gateway, stdio_server() as (read, write):
            server = gateway.server()
            await server.run(read, write, server.create_initialization_options())

    try:
        uvloop.run(serve())
    except* BrokenPipeError:
        _log.info("the client disconnected")


def http_app(settings: GatewaySettings, service: ServiceSettings) -> Starlette:
    """Return the application that serves clients at `/mcp`. `service` sets address and tokens."""
    from pdp.service.security.oidc import OidcAuthenticator  # noqa: PLC0415 - an extra that stdio does not need
    from pdp.service.security.tokens import open_tokens  # noqa: PLC0415 - an extra that stdio does not need

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
                        # The audience is not checked here, because each authenticator checks it.
                        validate_token_resource=False,
                    ),
                    token_verifier=Verifier(known, settings.tenant),
                )
                app.router.routes.append(Mount("/", served))
                async with server.session_manager.run():
                    yield {"ending": asyncio.Event()}

    return Starlette(lifespan=lifespan)
