"""HTTP to OPA for tasks: one session of aiohttp for each event loop that asks, closed with the loop or the engine."""

import asyncio
import io
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from pdp.engine.opa.client import (
    BROKEN_OFF,
    ENDLESS,
    MAX_BODY,
    NO_CONNECTION,
    PIECE,
    TOO_LARGE,
    Answer,
    MalformedAnswerError,
    OpaClient,
    error_words,
    is_quiet,
)
from pdp.installed import extra

with extra("sidecar"):
    import aiohttp
    from yarl import URL

_LARGE: Final = 1024 * 1024  # bytes; aiohttp warns of more that is not a file
# The connections that the running exchange has taken.
_taken: ContextVar[list[asyncio.Transport]] = ContextVar("_taken")


class Sessions:
    """The sessions of one client, by their event loop."""

    def __init__(self, client: OpaClient) -> None:
        self._client = client
        self._base = "http://localhost" if client.address.path is not None else client.address.url
        self._urls: dict[str, URL] = {}
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]
        ] = weakref.WeakKeyDictionary()

    async def exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> Answer:
        """Async variant of `OpaClient.exchange`. Waiting until a connection is free counts as well."""
        url = self._urls.get(path) or self._urls.setdefault(path, URL(self._base + path, encoded=True))
        self._client.check_usable()
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._attempt(method, url, body)
                except (ConnectionResetError, BrokenPipeError):
                    return await self._attempt(method, url, body)
        except (OSError, MalformedAnswerError) as error:
            self._client.check_usable()  # an exchange that breaks because the engine is closed is not OPA's fault
            raise self._client.failure(error, seconds) from error

    def close(self) -> None:
        """Let each session be closed by its event loop, once that runs; loops that have ended have closed theirs."""
        for loop, (_, owner) in list(self._sessions.items()):
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(_end(owner), loop)

    async def aclose(self) -> None:
        """Close the session of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await _end(session[1])

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        known = self._sessions.get(loop)
        if known is None or known[0].closed:
            # A generator, as an event loop closes those that are left when it ends (`shutdown_asyncgens`).
            owner = self._opened()
            known = self._sessions[loop] = (await anext(owner), owner)
        return known[0]

    async def _opened(self) -> AsyncGenerator[aiohttp.ClientSession]:
        async with new_session(self._client) as session:
            yield session

    async def _attempt(self, method: str, url: URL, body: bytes | None) -> Answer:
        session = await self._session()
        data = body if body is None or len(body) <= _LARGE else io.BytesIO(body)
        taken: list[asyncio.Transport] = []
        _taken.set(taken)
        try:
            async with session.request(method, url, data=data, allow_redirects=False) as response:
                return Answer(response.status, await _body(response))
        except (aiohttp.ClientError, RuntimeError) as error:
            raise _plain(error) from error
        finally:
            # At once, whatever is still to be sent: a graceful end would wait for an OPA that reads nothing.
            for transport in taken:
                if transport.is_closing():
                    transport.abort()


def new_session(client: OpaClient, seconds: float | None = None) -> aiohttp.ClientSession:
    """Return a session with the address, headers and TLS settings of a client; `seconds` bound a whole exchange."""
    path, most = client.address.path, client.connections
    return aiohttp.ClientSession(
        connector=_QuietUnix(path, limit=most) if path else _QuietTcp(limit=most, ssl=client.tls or True),
        headers=client.headers,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=client.connect_timeout),
    )


def _plain(error: Exception) -> Exception:  # noqa: PLR0911 - a table
    """Return what an error of aiohttp is without aiohttp: `MalformedAnswerError`, or one of the system's."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return OSError(NO_CONNECTION)
        case aiohttp.ClientConnectorCertificateError():
            return OSError(error_words(error.certificate_error))
        case aiohttp.ClientConnectorError():
            return OSError(error_words(error.os_error))
        case aiohttp.ClientResponseError():
            return MalformedAnswerError(f"did not answer in HTTP: {' '.join(error.message.split())[:200]}")
        # The message of other disconnections is the head that had arrived.
        case aiohttp.ServerDisconnectedError(message=str()) | aiohttp.ClientConnectionResetError():
            return ConnectionResetError()
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return MalformedAnswerError(BROKEN_OFF)
        case aiohttp.ClientOSError(errno=int()):
            return OSError(error.errno, error.strerror)
    return OSError(error_words(error))


async def _end(owner: AsyncGenerator[aiohttp.ClientSession]) -> None:
    with suppress(RuntimeError):  # the loop ends, and closes it already
        await owner.aclose()


async def _body(response: aiohttp.ClientResponse) -> bytes:
    if response.content_length is None and "Transfer-Encoding" not in response.headers:
        raise MalformedAnswerError(ENDLESS)
    body = b""
    async for piece in response.content.iter_chunked(PIECE):
        body += piece
        if len(body) > MAX_BODY:
            raise MalformedAnswerError(TOO_LARGE)
    return body


class _Quiet(aiohttp.BaseConnector):
    """A connector that drops a kept connection on which something has arrived: it would answer the next request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        while True:
            connection = await super().connect(*arguments, **options)
            protocol: Any = connection.protocol
            transport = protocol.transport
            # On a new connection TLS itself may have sent something.
            is_new = protocol not in self._used
            if is_new or (not protocol.should_close and is_quiet(transport.get_extra_info("socket"))):
                self._used.add(protocol)
                _taken.get([]).append(transport)
                return connection
            connection.close()


class _QuietTcp(_Quiet, aiohttp.TCPConnector):
    pass


class _QuietUnix(_Quiet, aiohttp.UnixConnector):
    pass
