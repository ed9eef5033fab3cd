"""HTTP to OPA for asyncio tasks. Each event loop has an aiohttp session, closed with the loop or the engine."""

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

# The size in bytes from which a body is passed as a file, because aiohttp warns about larger bodies otherwise.
_LARGE: Final = 1024 * 1024
# The connections that the current request uses.
_taken: ContextVar[list[asyncio.Transport]] = ContextVar("_taken")


class Sessions:
    """The aiohttp sessions of one OPA client, one for each event loop."""

    def __init__(self, client: OpaClient) -> None:
        self._client = client
        self._base = "http://localhost" if client.address.path is not None else client.address.url
        self._urls: dict[str, URL] = {}
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]
        ] = weakref.WeakKeyDictionary()

    async def exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> Answer:
        """Async variant of `OpaClient.exchange`. `seconds` includes the time to wait for a free connection."""
        url = self._urls.get(path) or self._urls.setdefault(path, URL(self._base + path, encoded=True))
        self._client.check_usable()
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._attempt(method, url, body)
                except (ConnectionResetError, BrokenPipeError):
                    return await self._attempt(method, url, body)
        except (OSError, MalformedAnswerError) as error:
            self._client.check_usable()  # if the engine is closed during a request, the error is not OPA's fault
            raise self._client.failure(error, seconds) from error

    def close(self) -> None:
        """Ask each running event loop to close its session. Ended loops have already closed their sessions."""
        for loop, (_, owner) in list(self._sessions.items()):
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(_close(owner), loop)

    async def aclose(self) -> None:
        """Close the session of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await _close(session[1])

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        known = self._sessions.get(loop)
        if known is None or known[0].closed:
            # The session is owned by a generator, because an event loop closes its generators when it ends
            # (`shutdown_asyncgens`).
            owner = self._own_session()
            known = self._sessions[loop] = (await anext(owner), owner)
        return known[0]

    async def _own_session(self) -> AsyncGenerator[aiohttp.ClientSession]:
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
            raise _convert_error(error) from error
        finally:
            # Connections are aborted even if data is unsent, because a graceful close would wait for an OPA that does
            # not read.
            for transport in taken:
                if transport.is_closing():
                    transport.abort()


def new_session(client: OpaClient, seconds: float | None = None) -> aiohttp.ClientSession:
    """Return an aiohttp session with an OPA client's address, headers and TLS settings. `seconds` limits a request."""
    path, most = client.address.path, client.connections
    return aiohttp.ClientSession(
        connector=_UnixConnector(path, limit=most) if path else _TcpConnector(limit=most, ssl=client.tls or True),
        headers=client.headers,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=client.connect_timeout),
    )


def _convert_error(error: Exception) -> Exception:  # noqa: PLR0911 - one return for each kind of error
    match error:
        case aiohttp.ConnectionTimeoutError():
            return OSError(NO_CONNECTION)
        case aiohttp.ClientConnectorCertificateError():
            return OSError(error_words(error.certificate_error))
        case aiohttp.ClientConnectorError():
            return OSError(error_words(error.os_error))
        case aiohttp.ClientResponseError():
            return MalformedAnswerError(f"sent an answer that is not HTTP: {' '.join(error.message.split())[:200]}")
        # The message of any other disconnect is the part of the answer's head that was received.
        case aiohttp.ServerDisconnectedError(message=str()) | aiohttp.ClientConnectionResetError():
            return ConnectionResetError()
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return MalformedAnswerError(BROKEN_OFF)
        case aiohttp.ClientOSError(errno=int()):
            return OSError(error.errno, error.strerror)
    return OSError(error_words(error))


async def _close(owner: AsyncGenerator[aiohttp.ClientSession]) -> None:
    with suppress(RuntimeError):  # if the event loop is already ending, it closes the generator itself
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


class _QuietConnector(aiohttp.BaseConnector):
    """A connector that discards idle connections with unread data, which would be taken for the next response."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._used: weakref.WeakSet[Any] = weakref.WeakSet()

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        while True:
            connection = await super().connect(*arguments, **options)
            protocol: Any = connection.protocol
            transport = protocol.transport
            # Only reused connections are checked for unexpected data, because a new connection may hold data of the TLS
            # handshake.
            is_new = protocol not in self._used
            if is_new or (not protocol.should_close and is_quiet(transport.get_extra_info("socket"))):
                self._used.add(protocol)
                _taken.get([]).append(transport)
                return connection
            connection.close()


class _TcpConnector(_QuietConnector, aiohttp.TCPConnector):
    pass


class _UnixConnector(_QuietConnector, aiohttp.UnixConnector):
    pass
