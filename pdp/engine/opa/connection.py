"""One connection to a server, over TCP or a Unix socket, plain or with TLS, for a thread or a task.

The socket is ours and belongs to no event loop, so that a connection outlives the loop in which it was opened. TLS runs
over memory buffers for the same reason.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from pdp.engine.opa.response import ResponseError, ResponseReader

if TYPE_CHECKING:
    from typing import Self

    from pdp.engine.opa.address import Address
    from pdp.engine.opa.response import Response

_PIECE: Final = 64 * 1024
_BROKEN: Final = "broke off in the middle of its answer"


class Connection:
    """A connection that is open. For one request at a time.

    Raises, whatever it does: OSError (TimeoutError among them) for what befalls the connection. It must then be closed,
    as it must after a request that was not finished.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._tls: _Tls | None = None

    @classmethod
    def open(cls, address: Address, tls: ssl.SSLContext | None, deadline: float) -> Self:
        """Return a new connection; `deadline` is by `time.monotonic`."""
        connection = cls(_connected(address, deadline))
        try:
            if tls is not None:
                connection._start_tls(_Tls(tls, address.host), deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    async def aopen(cls, address: Address, tls: ssl.SSLContext | None) -> Self:
        """Do as `open`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        if address.path is not None:
            sock = await _aconnected(loop, socket.AF_UNIX, address.path)
        else:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            sock = await _first_connected(loop, [(family, where) for family, _, _, _, where in found])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cls(sock)
        try:
            if tls is not None:
                await connection._astart_tls(_Tls(tls, address.host))
        except BaseException:
            connection.close()
            raise
        return connection

    def is_quiet(self) -> bool:
        """Whether the connection is open and nothing waits to be read: what came unasked is no answer to the next."""
        return not _is_ready(self._sock, 0.0)

    def converse(self, request: bytes, deadline: float) -> Response:
        """Send a request and return the response to it.

        Raises:
            ResponseError: not a response of the admitted form, or half of one.
        """
        reader = ResponseReader()
        self._send(self._tls.encrypt(request) if self._tls else request, deadline)
        while True:
            try:
                data = self._receive(deadline)
            except ConnectionError as error:
                _check_begun(reader, error)
                raise
            response = _fed(reader, self._tls.decrypt(data) if self._tls else data, ended=not data)
            if response is not None:
                return response

    async def aconverse(self, request: bytes) -> Response:
        """Do as `converse`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        reader = ResponseReader()
        await loop.sock_sendall(self._sock, self._tls.encrypt(request) if self._tls else request)
        while True:
            try:
                data = await loop.sock_recv(self._sock, _PIECE)
            except ConnectionError as error:
                _check_begun(reader, error)
                raise
            response = _fed(reader, self._tls.decrypt(data) if self._tls else data, ended=not data)
            if response is not None:
                return response

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        self._sock.close()

    def _send(self, data: bytes, deadline: float) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._sock.send(memoryview(data)[sent:] if sent else data)
            except BlockingIOError:
                if not _is_ready(self._sock, _left(deadline), to_write=True):
                    raise TimeoutError from None

    def _receive(self, deadline: float) -> bytes:
        while True:
            if not _is_ready(self._sock, _left(deadline)):
                raise TimeoutError
            try:
                return self._sock.recv(_PIECE)
            except BlockingIOError:  # what woke us was nothing after all
                continue

    def _start_tls(self, tls: _Tls, deadline: float) -> None:
        done = False
        while not done:
            done = tls.shake_hands()
            self._send(tls.outgoing(), deadline)
            if not done:
                tls.incoming(self._receive(deadline))
        self._tls = tls

    async def _astart_tls(self, tls: _Tls) -> None:
        loop = asyncio.get_running_loop()
        done = False
        while not done:
            done = tls.shake_hands()
            await loop.sock_sendall(self._sock, tls.outgoing())
            if not done:
                tls.incoming(await loop.sock_recv(self._sock, _PIECE))
        self._tls = tls


class _Tls:
    """The client's side of TLS between buffers: what to send, and what was received."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    def shake_hands(self) -> bool:
        """Go on with the handshake and return whether it is done; `outgoing` is to be sent in either case."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def outgoing(self) -> bytes:
        return self._out.read()

    def incoming(self, data: bytes) -> None:
        if not data:
            raise _closed()
        self._in.write(data)

    def encrypt(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return what `data` makes readable: nothing, for messages of TLS itself."""
        self._in.write(data)
        found = bytearray()
        try:
            while piece := self._tls.read(_PIECE):
                found += piece
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return bytes(found)


def _fed(reader: ResponseReader, data: bytes, *, ended: bool) -> Response | None:
    response = reader.feed(data) if data else None
    if response is None and ended:
        error = _closed()
        _check_begun(reader, error)
        raise error
    return response


def _check_begun(reader: ResponseReader, error: OSError) -> None:
    if reader.begun:
        raise ResponseError(_BROKEN) from error


def _closed() -> ConnectionResetError:
    return ConnectionResetError("the connection was closed without an answer")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_ready(sock: socket.socket, seconds: float, *, to_write: bool = False) -> bool:
    """Wait until the socket can be read or written, has failed, or the time is over."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLOUT if to_write else select.POLLIN)
        return bool(poll.poll(math.ceil(seconds * 1000)))
    readers, writers, failed = select.select([] if to_write else [sock], [sock] if to_write else [], [sock], seconds)
    return bool(readers or writers or failed)


def _connected(address: Address, deadline: float) -> socket.socket:
    if address.path is None:
        sock = socket.create_connection((address.host, address.port), _left(deadline))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_left(deadline))
        sock.connect(address.path)
    except BaseException:
        sock.close()
        raise
    return sock


async def _first_connected(
    loop: asyncio.AbstractEventLoop, places: list[tuple[socket.AddressFamily, tuple[object, ...]]]
) -> socket.socket:
    for family, where in places[:-1]:
        try:
            return await _aconnected(loop, family, where)
        except OSError:
            continue
    return await _aconnected(loop, *places[-1])


async def _aconnected(
    loop: asyncio.AbstractEventLoop, family: socket.AddressFamily, where: tuple[object, ...] | str
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock
