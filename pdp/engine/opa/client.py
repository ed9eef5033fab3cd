"""HTTP to one OPA for threads: keep-alive connections of `http.client`. `pdp.engine.opa.aio` is the variant for tasks.

One deadline covers the whole exchange, even if the response arrives slowly, and the size of a response is limited. If a
connection breaks, the request is sent once more on a new connection, because a decision changes nothing in OPA.
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

MAX_SOCKET_PATH: Final = 103  # the maximum length of a Unix socket's path in bytes that all systems allow

_URL_HINT: Final = f"give http://HOST:PORT, https://HOST:PORT or unix:///PATH of at most {MAX_SOCKET_PATH} bytes"
_URL: Final = re.compile(
    r"(https?)://(?:([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)|\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\])(?::([0-9]{1,5}))?/?"
)
_UNIX: Final = re.compile(r"unix:///([^?#]*[^?#/])")
_PORTS: Final = {"http": 80, "https": 443}
_MAX_PORT: Final = 65535

# the maximum bytes of an answer: a request has at most 1 MiB, and the answer may repeat the request
MAX_BODY: Final = 4 * 1024 * 1024

NO_CONNECTION: Final = "no connection in time"
BROKEN_OFF: Final = "sent an incomplete answer"
ENDLESS: Final = "sent an answer without a length"
TOO_LARGE: Final = f"sent an answer of more than {MAX_BODY} bytes"

PIECE: Final = 64 * 1024  # the number of bytes that are read from an answer at a time

_TLS_RECORD: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an OPA server: TCP, or a Unix socket at `path` (then `host` is "localhost", and `port` 0)."""

    url: str
    path: str | None
    host: str
    port: int
    tls: bool


def parse_address(url: str) -> Address:
    """Parse `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:///PATH`. Raises `UsageError` for anything else."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError("OPA's URL contains a user or a password", hint="use a token instead")
    if parts := _URL.fullmatch(url):
        scheme, name, ip, digits = parts.groups()
        port = int(digits or _PORTS[scheme])
        if 0 < port <= _MAX_PORT:
            return Address(url.rstrip("/"), None, name or ip, port, scheme == "https")
    path = url.removeprefix("unix://")
    if _UNIX.fullmatch(url) and url.isprintable() and len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return Address(url, path, "localhost", 0, tls=False)
    raise UsageError(f"OPA's URL {url[:100]!r} is not valid", hint=_URL_HINT)


class Answer(NamedTuple):
    """The status and the complete body of an HTTP response."""

    status: int
    body: bytes


class MalformedAnswerError(Exception):
    """The response is truncated or not HTTP. The message begins with a verb, to follow the server's name."""


@dataclass(eq=False, repr=False)  # repr=False hides the headers, because they contain the token
class OpaClient:
    """Sends requests to one OPA, with options of `SidecarEngine`. Safe for threads, but not for forked processes."""

    address: Address
    connect_timeout: float
    connections: int
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", **self.headers}
        self._idle: deque[_DeadlineConnection] = deque()
        self._process = os.getpid()
        self._closed = False

    def exchange(self, method: str, path: str, body: bytes | None, seconds: float) -> Answer:
        """Send a request that is safe to send twice, and return the response within `seconds`. `path` has the query.

        Raises `EngineError` if no connection is possible, two connections broke, or the client is closed;
        `EngineTimeoutError`; and `AnswerInvalidError` if the response is not HTTP, too large or truncated.
        """
        deadline = time.monotonic() + seconds
        self.check_usable()
        try:
            try:
                return self._attempt(self._idle_connection(), method, path, body, deadline)
            except (ConnectionResetError, BrokenPipeError):
                return self._attempt(_DeadlineConnection(self), method, path, body, deadline)
        except (OSError, HTTPException, MalformedAnswerError) as error:
            raise self.failure(error, seconds) from error

    def close(self) -> None:
        """Close idle connections now, and busy connections later. Further requests raise `EngineError`."""
        self._closed = True
        self._close_idle(0)

    def check_usable(self) -> None:
        """Raise `EngineError` if the client is closed, or was created before the process was forked."""
        if self._closed:
            raise EngineError(f"OPA at {self.address.url} was not asked: the engine is closed")
        if os.getpid() != self._process:
            # After a fork, two processes would share the sockets, and each could read answers for the other process.
            raise EngineError(
                f"OPA at {self.address.url} was not asked: the engine was opened before the process was forked",
                hint="open the engine after the fork",
            )

    def _attempt(
        self, connection: _DeadlineConnection, method: str, path: str, body: bytes | None, deadline: float
    ) -> Answer:
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

    def _idle_connection(self) -> _DeadlineConnection:
        """Return the most recently used idle connection that is still usable, or a new connection."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if is_quiet(connection.sock):
                    return connection
                connection.close()
        return _DeadlineConnection(self)

    def _close_idle(self, most: int) -> None:
        """Close the least recently used idle connections until at most `most` idle connections are left."""
        with suppress(IndexError):
            while len(self._idle) > most:
                self._idle.popleft().close()

    def failure(self, error: Exception, seconds: float) -> EngineError:
        """Convert the error of a request to an `EngineError`. `seconds` was the time limit of the request."""
        name = f"OPA at {self.address.url}"
        if isinstance(error, TimeoutError):
            return EngineTimeoutError(
                f"{name} did not answer within {seconds:g} s", hint="check OPA's log, or set a longer timeout"
            )
        words = error_words(error)
        if isinstance(error, OSError):
            return EngineError(
                f"{name} cannot be reached: {words}", hint="check that OPA runs and that the URL is right"
            )
        fault = words if isinstance(error, MalformedAnswerError) else f"sent an answer that is not HTTP: {words}"
        return AnswerInvalidError(f"{name} {fault}", hint="check that OPA listens at this URL, and check its log")


class _DeadlineConnection(HTTPConnection):
    """An HTTP connection on which all sends and receives of a request share one deadline."""

    deadline = 0.0
    _outgoing = b""

    def __init__(self, client: OpaClient) -> None:
        # http.client omits this port from the Host header.
        self.default_port = _PORTS["http" if client.tls is None else "https"]
        super().__init__(client.address.host, client.address.port or None)
        self._client = client

    def connect(self) -> None:
        client = self._client
        until = min(self.deadline, time.monotonic() + client.connect_timeout)
        self.timeout = _seconds_left(until)
        try:
            if client.address.path is None:
                super().connect()
            else:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(self.timeout)
                self.sock.connect(client.address.path)
            if client.tls is not None:
                self.sock.settimeout(_seconds_left(until))
                self.sock = client.tls.wrap_socket(self.sock, server_hostname=self.host)
        except TimeoutError as error:
            if until < self.deadline:
                raise OSError(NO_CONNECTION) from error
            raise

    def send(self, data: Any) -> None:
        # Head and body are collected and sent together, which makes a decision 5 % faster.
        self._outgoing += data

    # http.client calls this method after it has sent a request.
    def response_class(self, sock: socket.socket, **options: Any) -> HTTPResponse:  # type: ignore[override]
        outgoing, self._outgoing = memoryview(self._outgoing), b""
        # the request is sent in pieces, because a TLS timeout applies to one record only
        for start in range(0, len(outgoing), _TLS_RECORD):
            sock.settimeout(_seconds_left(self.deadline))
            sock.sendall(outgoing[start : start + _TLS_RECORD])
        return HTTPResponse(_DeadlineReader(self, sock), **options)  # type: ignore[arg-type] # only needs makefile


class _DeadlineReader(io.RawIOBase):
    """A stream that reads from a connection's socket until the connection's deadline."""

    def __init__(self, connection: _DeadlineConnection, sock: socket.socket) -> None:
        self._connection = connection
        self._sock = sock
        # the reference keeps the socket open until the response is closed
        self._file = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_seconds_left(self._connection.deadline))
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _body(response: HTTPResponse) -> bytes:
    if response.length is None and not response.chunked:
        # An answer without a length ends when the connection ends, so a truncated answer would look complete.
        raise MalformedAnswerError(ENDLESS)
    body = b""
    try:
        while piece := response.read(PIECE):
            body += piece
            if len(body) > MAX_BODY:
                raise MalformedAnswerError(TOO_LARGE)
    except (HTTPException, ValueError) as error:  # http.client raises ValueError for a negative chunk size
        raise MalformedAnswerError(BROKEN_OFF) from error
    if response.length:  # the answer is shorter than its length
        raise MalformedAnswerError(BROKEN_OFF)
    return body


def is_quiet(sock: socket.socket) -> bool:
    """Return whether an idle connection is open and has no unread data, which would be taken for the next response."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def error_words(error: Exception) -> str:
    """Return the reason why a request to OPA failed, on one line."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, ConnectionResetError):
        return "the connection was closed without an answer"
    return " ".join(str(error).split())[:200] or type(error).__name__
