"""HTTP to one OPA for threads: keep-alive connections of `http.client`. `pdp.engine.opa.aio` has those for tasks.

One deadline holds for the whole exchange, however slowly the answer arrives, and an answer is bounded. What was sent on
a connection that breaks is sent once more, on a new one: a decision changes nothing in OPA.
"""

from __future__ import annotations

import io
import os
import re
import select
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple

from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError, UsageError

MAX_SOCKET_PATH: Final = 103  # longest path of a Unix socket that every system takes, in bytes

_URL_HINT: Final = f"give http://HOST:PORT, https://HOST:PORT or unix:///PATH of at most {MAX_SOCKET_PATH} bytes"
_URL: Final = re.compile(
    r"(https?)://(?:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)|\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\])(?::([0-9]{1,5}))?/?"
)
_UNIX: Final = re.compile(r"unix:///([^?#]*[^?#/])")
_PORTS: Final = {"http": 80, "https": 443}
_MAX_PORT: Final = 65535

MAX_BODY: Final = 4 * 1024 * 1024  # bytes of an answer; a request has at most 1 MiB, and an answer may quote all of it

NO_CONNECTION: Final = "no connection in time"
BROKEN_OFF: Final = "broke off in the middle of its answer"
ENDLESS: Final = "does not say where its answer ends"
TOO_LARGE: Final = f"sent an answer of more than {MAX_BODY} bytes"

PIECE: Final = 64 * 1024  # how many bytes of an answer without a length are read at a time

_TLS_RECORD: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to: TCP, or the `path` of a Unix socket (host "localhost", port 0). `url` is for messages."""

    url: str
    path: str | None
    host: str
    port: int
    tls: bool


def parse_address(url: str) -> Address:
    """Read `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:///PATH`; UsageError for anything else."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError("OPA's address holds a user or a password", hint="give a token instead")
    if parts := _URL.fullmatch(url):
        scheme, name, ip, digits = parts.groups()
        port = int(digits or _PORTS[scheme])
        if 0 < port <= _MAX_PORT:
            return Address(url.rstrip("/"), None, name or ip, port, scheme == "https")
    path = url.removeprefix("unix://")
    if _UNIX.fullmatch(url) and url.isprintable() and len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return Address(url, path, "localhost", 0, tls=False)
    raise UsageError(f"OPA's address {url[:100]!r} is not valid", hint=_URL_HINT)


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes


class MalformedAnswerError(Exception):
    """Half an answer, or not HTTP. The message follows the server's name."""


@dataclass(eq=False, repr=False)  # not shown: the headers have the token
class OpaClient:
    """Sends requests to one OPA. Safe for threads; it belongs to the process that made it.

    The options are those of `SidecarEngine`, checked before; with an `https` address there is `tls`.
    """

    address: Address
    connect_timeout: float
    connections: int
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", **self.headers}
        self._idle: deque[_Deadlined] = deque()
        self._process = os.getpid()
        self._closed = False

    def exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> Answer:
        """Send a request, which must be safe to send twice, and return the answer.

        The path has the query; the seconds are for all of it.

        Raises:
            EngineError: no connection, or it broke twice; closed; used after a fork.
            EngineTimeoutError: no whole answer in time.
            AnswerInvalidError: not HTTP, too large, or half an answer.
        """
        deadline = time.monotonic() + seconds
        self.check_usable()
        try:
            try:
                return self._attempt(self._idle_connection(), method, path, body, deadline)
            except (ConnectionResetError, BrokenPipeError):
                return self._attempt(_Deadlined(self), method, path, body, deadline)
        except (OSError, HTTPException, MalformedAnswerError) as error:
            raise self.failure(error, seconds) from error

    def close(self) -> None:
        """Close all connections; a thread's is closed when its request is done. Requests are refused from now on."""
        self._closed = True
        self._close_idle(0)

    def check_usable(self) -> None:
        """Raise EngineError once it is closed, and in a forked child."""
        if self._closed:
            raise EngineError(f"OPA at {self.address.url} was not asked: the engine is closed")
        if os.getpid() != self._process:
            # Two processes would share the sockets, and each read the other's decisions.
            raise EngineError(
                f"OPA at {self.address.url} was not asked: the engine was opened before the process was forked",
                hint="open it after the fork",
            )

    def _attempt(self, connection: _Deadlined, method: str, path: str, body: bytes | None, deadline: float) -> Answer:
        connection.deadline = deadline
        try:
            if connection.sock is None:
                connection.connect()
            connection.request(method, path, body, self.headers)
            with connection.getresponse() as response:
                answer = Answer(response.status, _body(response))
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
            self._close_idle(0 if self._closed else self.connections)
        return answer

    def _idle_connection(self) -> _Deadlined:
        """Return a kept connection that is still good, the last used first, or else a new one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if is_quiet(connection.sock):
                    return connection
                connection.close()
        return _Deadlined(self)

    def _close_idle(self, most: int) -> None:
        """Close idle connections until at most `most` are left, the last used last."""
        with suppress(IndexError):
            while len(self._idle) > most:
                self._idle.popleft().close()

    def failure(self, error: Exception, seconds: float) -> EngineError:
        """Return the error of an exchange that had so many seconds as one of the engine."""
        name = f"OPA at {self.address.url}"
        if isinstance(error, TimeoutError):
            return EngineTimeoutError(
                f"{name} did not answer within {seconds:g} s", hint="look into its log, or allow more time"
            )
        words = error_words(error)
        if isinstance(error, OSError):
            return EngineError(
                f"{name} cannot be reached: {words}", hint="check that it runs and that the address is right"
            )
        fault = words if isinstance(error, MalformedAnswerError) else f"did not answer in HTTP: {words}"
        return AnswerInvalidError(f"{name} {fault}", hint="check that OPA itself listens there, and look into its log")


class _Deadlined(HTTPConnection):
    """A connection whose sends and receives all end by one deadline."""

    deadline = 0.0
    _outgoing = b""

    def __init__(self, client: OpaClient) -> None:
        # The head states every port but this one.
        self.default_port = _PORTS["http" if client.tls is None else "https"]
        super().__init__(client.address.host, client.address.port or None)
        self._client = client

    def connect(self) -> None:
        client = self._client
        until = min(self.deadline, time.monotonic() + client.connect_timeout)
        self.timeout = _left(until)
        try:
            if client.address.path is None:
                super().connect()
            else:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(self.timeout)
                self.sock.connect(client.address.path)
            if client.tls is not None:
                self.sock.settimeout(_left(until))
                self.sock = client.tls.wrap_socket(self.sock, server_hostname=self.host)
        except TimeoutError as error:
            if until < self.deadline:
                raise OSError(NO_CONNECTION) from error
            raise

    def send(self, data: Any) -> None:
        # Collected: head and body leave in one piece, which is worth a twentieth of a decision's time.
        self._outgoing += data

    # http.client asks for this when it has sent a request.
    def response_class(self, sock: socket.socket, **options: Any) -> HTTPResponse:  # type: ignore[override]
        outgoing, self._outgoing = memoryview(self._outgoing), b""
        for start in range(0, len(outgoing), _TLS_RECORD):  # in pieces, as a timeout of TLS holds for one record
            sock.settimeout(_left(self.deadline))
            sock.sendall(outgoing[start : start + _TLS_RECORD])
        return HTTPResponse(_DeadlineReader(self, sock), **options)  # type: ignore[arg-type] # it asks for a file alone


class _DeadlineReader(io.RawIOBase):
    """What a response is read from: each read has the time that is left until the connection's deadline."""

    def __init__(self, connection: _Deadlined, sock: socket.socket) -> None:
        self._connection = connection
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # holds the socket open until the response is closed

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._connection.deadline))
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _body(response: HTTPResponse) -> bytes:
    if response.length is None and not response.chunked:
        raise MalformedAnswerError(ENDLESS)  # it ends with its connection: half of it would look like the whole
    body = b""
    try:
        while piece := response.read(PIECE):
            body += piece
            if len(body) > MAX_BODY:
                raise MalformedAnswerError(TOO_LARGE)
    except (HTTPException, ValueError) as error:  # a negative size of a chunk is a ValueError
        raise MalformedAnswerError(BROKEN_OFF) from error
    if response.length:  # what is left of it
        raise MalformedAnswerError(BROKEN_OFF)
    return body


def is_quiet(sock: socket.socket) -> bool:
    """Whether a kept connection is open and nothing waits to be read: it would be taken for the next answer."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def error_words(error: Exception) -> str:
    """Return why an exchange failed, on one line; of the system's errors in its own words."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, ConnectionResetError):
        return "the connection was closed without an answer"
    return " ".join(str(error).split())[:200] or type(error).__name__
