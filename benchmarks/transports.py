"""What a request to OPA takes at least, on a bare socket and with bare aiohttp; and opa-python-client beside them."""

import asyncio
import socket
from types import TracebackType
from typing import Any, Self

_HEAD = (
    b"POST /v1/data/authz/decision?strict-builtin-errors=true&provenance=true HTTP/1.1\r\nHost: opa\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
_URL = "http://localhost/v1/data/authz/decision?strict-builtin-errors=true&provenance=true"


def _path(url: str) -> str:
    return url.removeprefix("unix://")


def _message(body: bytes) -> bytes:
    content = b'{"input":' + body + b"}"
    return _HEAD % len(content) + content


def _length(head: bytes) -> int:
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(head.decode())
    return int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])


class RawSocket:
    """One blocking keep-alive connection on a Unix socket."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(_path(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, body: bytes) -> bytes:
        """Send one request and return the body of the answer."""
        self._socket.sendall(_message(body))
        data = self._socket.recv(65536)
        while b"\r\n\r\n" not in data:
            data += self._socket.recv(65536)
        head, _, content = data.partition(b"\r\n\r\n")
        missing = _length(head) - len(content)
        while missing > 0:
            more = self._socket.recv(65536)
            content += more
            missing -= len(more)
        return content


class BareAiohttp:
    """Keep-alive connections of an aiohttp session on a Unix socket, and nothing else."""

    def __init__(self, url: str, size: int) -> None:
        self._path = _path(url)
        self._size = size

    async def __aenter__(self) -> Self:
        from aiohttp import ClientSession, UnixConnector  # noqa: PLC0415

        self._session = ClientSession(connector=UnixConnector(path=self._path, limit=self._size))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, body: bytes) -> bytes:
        """Send one request and return the body of the answer."""
        headers = {"Content-Type": "application/json"}
        async with self._session.post(_URL, data=b'{"input":' + body + b"}", headers=headers) as response:
            content: bytes = await response.read()
            return content


class OpaClient:
    """opa-python-client's asynchronous client in an event loop of its own, one request at a time."""

    def __init__(self, url: str) -> None:
        from aiohttp import ClientSession, UnixConnector  # noqa: PLC0415
        from opa_client.opa_async import AsyncOpaClient  # noqa: PLC0415

        self._loop = asyncio.new_event_loop()
        self._client: Any = AsyncOpaClient(host="localhost", port=8181)

        async def connect() -> None:
            # It knows no Unix sockets; with a session on one it asks the same OPA on the same kind of connection.
            self._client._session = ClientSession(connector=UnixConnector(path=_path(url)))

        self._loop.run_until_complete(connect())

    def ask(self, request: dict[str, Any]) -> Any:
        """Return OPA's answer to one request."""
        return self._loop.run_until_complete(
            self._client.query_rule(input_data=request, package_path="authz", rule_name="decision")
        )

    def close(self) -> None:
        """Close the session and the loop."""
        self._loop.run_until_complete(self._client.close_connection())
        self._loop.close()
