"""The connection to one MCP server. The connection is opened at its first use, and opened again after a loss."""

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

# For each kind of list: the capability of the server, the request and the result.
_LISTS: Final[dict[str, tuple[str, Any, Any]]] = {
    "tools": ("tools", types.ListToolsRequest, types.ListToolsResult),
    "resources": ("resources", types.ListResourcesRequest, types.ListResourcesResult),
    "resource_templates": ("resources", types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult),
    "prompts": ("prompts", types.ListPromptsRequest, types.ListPromptsResult),
}
_MOST_PAGES: Final = 100
_LISTEN: Final[Any] = {f"{kind}_list_changed": True for kind in ("tools", "prompts", "resources")}
_LISTEN_AGAIN: Final = 5.0  # A lost stream of changes is opened again after this many seconds.
_CLOSING: Final = 10.0  # A server's program has this many seconds to end. The SDK waits two seconds, twice.
# The maximum number of notifications that a client has not read. Later notifications are dropped.
_MOST_UNREAD: Final = 500
_UNREAD: Final = WeakKeyDictionary[Any, asyncio.Semaphore]()
# After these errors, the server has certainly not acted. After any other error, the effect of the call is unknown.
_NOTHING_DONE: Final = (types.INVALID_PARAMS, types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.HEADER_MISMATCH)


class UpstreamError(ToolError):
    """A server answered with an error or an unusable result. With detail `effect: unknown`, the tool may have acted."""


class UnreachableError(ToolUnavailableError):
    """A server cannot be reached, and the request was not sent."""


@dataclass(eq=False)
class Asking:
    """A request of the client `who`. If `quiet`, the client gets only the result, no progress text or log message."""

    ctx: ServerRequestContext[Any]
    who: str | None
    quiet: bool

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress of the request to the client."""
        await notify_client(self.ctx.session.report_progress, progress, total, None if self.quiet else message)


ASKING: ContextVar[Asking | None] = ContextVar("asking", default=None)


async def notify_client(send: Any, *arguments: Any) -> None:
    """Send a notification to a client, unless too many are unread, because servers may send any number."""
    unread = _UNREAD.setdefault(send.__self__, asyncio.Semaphore(_MOST_UNREAD))
    if not unread.locked():
        async with unread:
            await send(*arguments)


class Upstream:
    """One server. The gateway declares no client capabilities, so the server cannot send requests to clients.

    `hear` is called with each notification. `changed` is the time (ns) at which the tools may have changed; 0 after the
    tools are listed. `askers` has the clients that used this connection, and whether one of their requests was quiet.
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
        """Whether the connection is closed, or its program has ended, so that a request would be lost."""
        has_ended = self._received is not None and self._received.statistics().open_send_streams == 0
        return self._holder is None or self._lost.is_set() or has_ended

    async def close(self) -> None:
        """Close the connection, and end the program that was started for it."""
        self._lost.set()
        if self._holder is not None:
            if not self._ready.done():
                self._holder.cancel()
            # A cancellation can be lost while the server's program starts, so it is repeated.
            while not (await asyncio.wait((self._holder,), timeout=_CLOSING))[0]:
                self._holder.cancel()

    async def listed(self, kind: str) -> list[Any]:
        """Return the server's `tools`, `resources`, `resource_templates` or `prompts`. Raises the errors of `ask`."""
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
        if kind == "tools":  # Only now is the list known to be current. Until then, each call requests the list again.
            self._listed_by, self.changed = client, self.changed if self.changed != changed else 0
        return items

    async def ask(
        self, request: types.Request[Any, Any], result: type[Answer], *, only_if_listed: bool = False
    ) -> Answer:
        """Send a request once. Raise `UnreachableError` if it was not sent, and `UpstreamError` if it failed.

        With `only_if_listed`, send it only to the program that listed its tools, not to a program started later.
        """
        client, asking, effect = await self.connected(), ASKING.get(), "unknown"
        if only_if_listed and client is not self._listed_by:
            raise UnreachableError(
                f"server {self.name} was restarted, so the call was not sent: try again", details={"effect": "none"}
            )
        meta: Any = (asking and asking.ctx.meta) or {}
        if asking is not None:
            self.asking.append(asking)
            self.askers[asking.who] = asking.quiet or self.askers.get(asking.who, False)
        if level := meta.get(types.LOG_LEVEL_META_KEY, self._level):
            request.params.meta = {types.LOG_LEVEL_META_KEY: level}
        try:
            report = None if asking is None else asking.progress
            answer = await client.session.send_request(request, result, progress_callback=report)
            if getattr(answer, "result_type", "complete") == "complete":
                return answer
            fault = "gave an answer that does not complete the request"
        except MCPError as error:
            fault = f"failed: {error.message}"
            if error.code == types.CONNECTION_CLOSED:
                self._lost.set()
            if error.code in _NOTHING_DONE:
                effect = "none"
        except (ValueError, RuntimeError):
            fault = "gave an answer that cannot be read"
        finally:
            if asking is not None:
                self.asking.remove(asking)
        raise UpstreamError(f"server {self.name} {fault}", details={"effect": effect})

    async def set_level(self, level: types.LoggingLevel) -> None:
        """Set the minimum level of the server's log messages. In newer MCP revisions, requests name this level."""
        self._level, client = level, await self.connected()
        if client.server_capabilities.logging and client.protocol_version < NEW:
            await self.ask(types.SetLevelRequest(params=types.SetLevelRequestParams(level=level)), types.EmptyResult)

    async def connected(self) -> Client:
        """Return the connection, and open it if needed. Raise `UnreachableError` if opening fails."""
        async with self._connecting:
            if self.is_lost:
                await self.close()
                self.changed, self.askers = time.monotonic_ns(), {}
                self._lost, self._received = asyncio.Event(), None
                self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._holder = asyncio.create_task(self._hold(self._ready, self._lost))
        # `shield` is needed, because other requests may wait for the connection if this request is cancelled.
        self.client = await asyncio.shield(self._ready)
        return self.client

    async def _hold(self, ready: asyncio.Future[Client], lost: asyncio.Event) -> None:
        """Open a connection, and close it when it is lost. The SDK requires that one task opens and closes it."""
        client = Client(
            self._transport(), cache=None, message_handler=self._on_message, read_timeout_seconds=self._timeout
        )
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
                while isinstance(error, ExceptionGroup):  # The transport wraps the cause in exception groups.
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
        """Keep a stream of changes open, because servers of newer revisions announce changes only to listeners."""
        while getattr(client.server_capabilities.tools, "list_changed", None) and client.protocol_version >= NEW:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(**_LISTEN) as events:
                    async for _ in events:
                        pass  # `_on_message` receives each event of the stream as well, so nothing is done here.
            self.changed = time.monotonic_ns()  # A change may have been missed while the stream was lost.
            await asyncio.sleep(_LISTEN_AGAIN)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed = time.monotonic_ns()
        if self._hear is not None and not isinstance(message, Exception):
            await self._hear(self, message)
