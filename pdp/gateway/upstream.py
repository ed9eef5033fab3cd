"""The connection to one MCP server: opened when it is first needed, and again after it was lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from pdp import __version__
from pdp.execution.failures import ToolError, ToolUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pdp.gateway.config import ServerSettings

Answer = TypeVar("Answer", bound=BaseModel)

_MOST_PAGES: Final = 100
_MOST_LISTED: Final = 10_000
_LISTS: Final[dict[str, tuple[str, Any, Any]]] = {
    "tools": ("tools", types.ListToolsRequest, types.ListToolsResult),
    "resources": ("resources", types.ListResourcesRequest, types.ListResourcesResult),
    "resource_templates": ("resources", types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult),
    "prompts": ("prompts", types.ListPromptsRequest, types.ListPromptsResult),
}
"""By what is listed, the capability of servers that have such things, and how it is asked for."""

# Errors after which a server has done nothing; after any other, nobody knows.
_NOTHING_DONE: Final = (types.INVALID_PARAMS, types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.HEADER_MISMATCH)


class UpstreamError(ToolError):
    """A server answered with an error, or nothing that can be used."""

    code = "gateway.server_failed"


class UnreachableError(ToolUnavailableError):
    """A server cannot be reached: nothing was sent to it."""

    code = "gateway.server_unavailable"


class Upstream:
    """One server. It is declared no capability of a client: it can ask nobody for anything through the gateway.

    `changed`: whether it may declare other tools than when it was last listed.
    """

    def __init__(self, name: str, settings: ServerSettings, timeout: float) -> None:
        self.name = name
        self.changed = True
        self._settings = settings
        self._timeout = timeout
        self._connecting = asyncio.Lock()
        self._holder: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._read: Any = None

    async def close(self) -> None:
        """End the connection, and the program that was started for it."""
        self._lost.set()
        if self._holder is not None:
            await asyncio.wait((self._holder,))

    async def listed(self, kind: str) -> list[Any]:
        """Return all that the server lists of `tools`, `resources`, `resource_templates` or `prompts`; errors of `ask`.

        UpstreamError too where the list has no end. A server without such things has none.
        """
        client = await self._connected()
        capability, request, result = _LISTS[kind]
        if getattr(client.server_capabilities, capability) is None:
            return []
        items: list[Any] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.ask(request(params=types.PaginatedRequestParams(cursor=cursor)), result)
            items += getattr(page, kind)
            cursor = page.next_cursor
            if cursor is None:
                return items
            if len(items) > _MOST_LISTED:
                break
        raise UpstreamError(f"server {self.name} lists {kind} without end", details={"effect": "none"})

    async def ask(self, request: types.Request[Any, Any], result: type[Answer]) -> Answer:
        """Send one request, once, and return its answer.

        UnreachableError: it was not sent. UpstreamError: an error, or no answer that can be used; with the detail
        `effect: unknown` where nobody knows what the server did.
        """
        client = await self._connected()
        try:
            return await client.session.send_request(request, result)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                self._lost.set()
            effect = "none" if error.code in _NOTHING_DONE else "unknown"
            raise UpstreamError(f"server {self.name}: {error.message}", details={"effect": effect}) from error
        except (ValueError, RuntimeError) as error:
            message = f"server {self.name} gave an answer that is not understood"
            raise UpstreamError(message, details={"effect": "unknown"}) from error

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or self._lost.is_set() or self._is_over():
                if self._holder is not None:
                    await self.close()
                self._lost, self.changed, self._client = asyncio.Event(), True, None
                ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._holder = asyncio.create_task(self._hold(ready, self._lost))
                try:
                    async with asyncio.timeout(self._timeout):
                        self._client = await ready
                except BaseException as error:
                    self._holder.cancel()
                    if not isinstance(error, Exception):
                        raise
                    reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
                    message = f"server {self.name} cannot be reached: {reason:.200}"
                    raise UnreachableError(message, details={"effect": "none"}) from error
            return self._client

    async def _hold(self, ready: asyncio.Future[Client], lost: asyncio.Event) -> None:
        """Open a connection and close it when it is lost: both have to be done by one task."""
        try:
            async with Client(
                self._transport(),
                cache=None,
                client_info=types.Implementation(name="pdp-mcp-gateway", version=__version__),
                message_handler=self._heard,
                read_timeout_seconds=self._timeout,
            ) as client:
                ready.set_result(client)
                await lost.wait()
        except Exception as error:  # noqa: BLE001 - whatever a server and its transport come up with
            lost.set()
            if not ready.done():
                ready.set_exception(error)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        settings = self._settings
        if settings.url:
            async with (
                create_mcp_http_client(headers=settings.headers) as http,
                streamable_http_client(settings.url, http_client=http) as streams,
            ):
                self._read = None
                yield streams
        else:
            program, *arguments = settings.command
            started = StdioServerParameters(command=program, args=arguments, env=settings.variables, cwd=settings.cwd)
            async with stdio_client(started) as streams:
                self._read = streams[0]
                yield streams

    def _is_over(self) -> bool:
        """Return whether the program has ended: a request now would be lost, and nobody would know that."""
        return self._read is not None and self._read.statistics().open_send_streams == 0

    async def _heard(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.changed = True
