"""The connection to one MCP server: opened when it is first needed, and again after it was lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import mcp_types as types
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.server.context import ServerRequestContext
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from pdp.execution.failures import ToolError, ToolUnavailableError
from pdp.gateway.config import ServerSettings
from pdp.gateway.methods import NEW

Hear = Callable[["Upstream", types.ServerNotification], Awaitable[None]]

Answer = TypeVar("Answer", bound=BaseModel)

# By what is listed: the capability of servers that have such things, and how they are asked.
_LISTS: Final[dict[str, tuple[str, Any, Any]]] = {
    "tools": ("tools", types.ListToolsRequest, types.ListToolsResult),
    "resources": ("resources", types.ListResourcesRequest, types.ListResourcesResult),
    "resource_templates": ("resources", types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult),
    "prompts": ("prompts", types.ListPromptsRequest, types.ListPromptsResult),
}
_MOST_PAGES: Final = 100
_LISTEN: Final[Any] = {f"{kind}_list_changed": True for kind in ("tools", "prompts", "resources")}
_LISTEN_AGAIN: Final = 5.0  # seconds
_CLOSING: Final = 10.0  # seconds for a program to end; the SDK gives it two twice
_MOST_UNREAD: Final = 500  # notifications that a client has not read; more are dropped
_UNREAD: Final = WeakKeyDictionary[Any, asyncio.Semaphore]()
# Errors after which a server has done nothing; after any other, nobody knows.
_NOTHING_DONE: Final = (types.INVALID_PARAMS, types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.HEADER_MISMATCH)


class UpstreamError(ToolError):
    """A server answered with an error, or nothing that can be used. Detail `effect: unknown`: it may have acted."""


class UnreachableError(ToolUnavailableError):
    """A server cannot be reached: nothing was sent to it."""


@dataclass(eq=False)
class Asking:
    """A request of the client `who`. `quiet`: an obligation or a rule of flow allows no text but its result."""

    ctx: ServerRequestContext[Any]
    who: str | None
    quiet: bool

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell the client how far its request is."""
        await notify_client(self.ctx.session.report_progress, progress, total, None if self.quiet else message)


ASKING: ContextVar[Asking | None] = ContextVar("asking", default=None)


async def notify_client(send: Any, *told: Any) -> None:
    """Send a notification by a client's method. Drop it if the client does not read: servers may send without end."""
    unread = _UNREAD.setdefault(send.__self__, asyncio.Semaphore(_MOST_UNREAD))
    if not unread.locked():
        async with unread:
            await send(*told)


class Upstream:
    """One server. The gateway declares no capability of a client to it: it cannot ask a client for anything.

    `changed`: when its tools may have changed since they were listed, in ns; 0: they have not. `client`: the last one.
    `asking`: the requests under way. `askers`: who asked on this connection, and if quietly. `hear` gets notifications.
    """

    def __init__(self, name: str, settings: ServerSettings, timeout: float, hear: Hear | None = None) -> None:
        self.name = name
        self.changed = time.monotonic_ns()
        self.asking: list[Asking] = []
        self.askers: dict[str | None, bool] = {}
        self.client: Client | None = None
        self._level: types.LoggingLevel | None = None
        self._hear = hear
        self._settings, self._timeout = settings, timeout
        self._connecting = asyncio.Lock()
        self._holder: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._received: Any = None
        self._listed_by: Client | None = None

    @property
    def is_lost(self) -> bool:
        """Whether there is no connection now: of a program that has ended, a request would be lost."""
        has_ended = self._received is not None and self._received.statistics().open_send_streams == 0
        return self._holder is None or self._lost.is_set() or has_ended

    async def close(self) -> None:
        """End the connection, and the program that was started for it."""
        self._lost.set()
        if self._holder is not None:
            if not self._ready.done():
                self._holder.cancel()
            # A cancellation can be lost while the program is being started: it is cancelled again.
            while not (await asyncio.wait((self._holder,), timeout=_CLOSING))[0]:
                self._holder.cancel()

    async def listed(self, kind: str) -> list[Any]:
        """Return its `tools`, `resources`, `resource_templates` or `prompts`, if it has such; errors as of `ask`."""
        client, changed = await self.connected(), self.changed
        capability, request, result = _LISTS[kind]
        items: list[Any] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES if getattr(client.server_capabilities, capability) else 0):
            page = await self.ask(request(params=types.PaginatedRequestParams(cursor=cursor)), result)
            items += getattr(page, kind)
            cursor = page.next_cursor
            if cursor is None:
                break
        if kind == "tools":  # until now, calls wait for a list of their own
            self._listed_by, self.changed = client, self.changed if self.changed != changed else 0
        return items

    async def ask(
        self, request: types.Request[Any, Any], result: type[Answer], *, only_if_listed: bool = False
    ) -> Answer:
        """Send one request, once, and return its answer. UnreachableError: it was not sent; UpstreamError.

        `only_if_listed`: to the program that has listed its tools, and not to one that was started since.
        """
        client, asking, effect = await self.connected(), ASKING.get(), "unknown"
        if only_if_listed and client is not self._listed_by:
            raise UnreachableError(f"server {self.name} was started anew: try again", details={"effect": "none"})
        meta: Any = (asking and asking.ctx.meta) or {}
        if asking is not None:
            self.asking.append(asking)
            self.askers[asking.who] = asking.quiet or self.askers.get(asking.who, False)
        if level := meta.get(types.LOG_LEVEL_META_KEY, self._level):
            request.params.meta = {types.LOG_LEVEL_META_KEY: level}
        try:
            told = None if asking is None else asking.progress
            answer = await client.session.send_request(request, result, progress_callback=told)
            if getattr(answer, "result_type", "complete") == "complete":
                return answer
            fault = "gave an answer that does not end the request"
        except MCPError as error:
            fault = f"failed: {error.message}"
            if error.code == types.CONNECTION_CLOSED:
                self._lost.set()
            if error.code in _NOTHING_DONE:
                effect = "none"
        except (ValueError, RuntimeError):
            fault = "gave an answer that is not understood"
        finally:
            if asking is not None:
                self.asking.remove(asking)
        raise UpstreamError(f"server {self.name} {fault}", details={"effect": effect})

    async def set_level(self, level: types.LoggingLevel) -> None:
        """Ask for log lines from a level on: at once, or by each request where the revision has it so."""
        self._level, client = level, await self.connected()
        if client.server_capabilities.logging and client.protocol_version < NEW:
            await self.ask(types.SetLevelRequest(params=types.SetLevelRequestParams(level=level)), types.EmptyResult)

    async def connected(self) -> Client:
        """Return the connection, and open it first if needed. Raises UnreachableError."""
        async with self._connecting:
            if self.is_lost:
                await self.close()
                self.changed, self.askers = time.monotonic_ns(), {}
                self._lost, self._received = asyncio.Event(), None
                self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._holder = asyncio.create_task(self._hold(self._ready, self._lost))
        self.client = await asyncio.shield(self._ready)  # others may wait for it when this request is cancelled
        return self.client

    async def _hold(self, ready: asyncio.Future[Client], lost: asyncio.Event) -> None:
        """Open a connection and, once it is lost, close it: one task has to do both."""
        client = Client(self._transport(), cache=None, message_handler=self._heard, read_timeout_seconds=self._timeout)
        try:
            async with asyncio.timeout(self._timeout) as starting, client:
                starting.reschedule(None)
                listening = asyncio.create_task(self._listen(client))
                ready.set_result(client)
                await lost.wait()
                listening.cancel()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - servers and transports raise anything
            lost.set()
            if not ready.done():
                while isinstance(error, ExceptionGroup):  # of the transport: what is in it says more
                    error = error.exceptions[0]
                message = f"server {self.name} cannot be reached: {type(error).__name__} {error}"
                ready.set_exception(UnreachableError(message, details={"effect": "none"}))

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        settings = self._settings
        if settings.url:
            async with (
                create_mcp_http_client(headers=settings.headers) as http,
                streamable_http_client(settings.url, http_client=http) as streams,
            ):
                yield streams
        else:
            program, *arguments = settings.command
            variables = settings.variables
            started = StdioServerParameters(command=program, args=arguments, env=variables, cwd=settings.cwd)
            async with stdio_client(started) as streams:
                self._received = streams[0]
                yield streams

    async def _listen(self, client: Client) -> None:
        """Keep a stream of changes open: a server of the new revision announces them to those who listen, only."""
        while getattr(client.server_capabilities.tools, "list_changed", None) and client.protocol_version >= NEW:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(**_LISTEN) as events:
                    async for _ in events:
                        pass  # `_heard` gets each event as well
            self.changed = time.monotonic_ns()  # a change may have been missed
            await asyncio.sleep(_LISTEN_AGAIN)

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed = time.monotonic_ns()
        if self._hear is not None and not isinstance(message, Exception):
            await self._hear(self, message)
