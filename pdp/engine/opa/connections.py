"""Keep-alive connections to one server, shared by threads and tasks.

A decision takes OPA 0.1 to 0.3 ms, and an HTTP library takes as long once more; so the one request that a decision
needs goes over plain sockets (`pdp.engine.opa.connection`), read by `pdp.engine.opa.response`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from pdp.engine.opa.connection import Connection
from pdp.engine.opa.response import ResponseError
from pdp.errors import AnswerInvalidError, EngineError, EngineTimeoutError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pdp.engine.opa.address import Address
    from pdp.engine.opa.response import Response

CONNECT_TIMEOUT: Final = 0.5
"""Default time to wait for a connection, in seconds."""

CONNECTIONS: Final = 64
"""Default number of connections that the tasks of one event loop have at a time, and that are kept."""


class Connections:
    """Connections to one server, opened when they are needed and kept for the next request.

    Args:
        address: where the server is.
        connect_timeout: seconds to wait for a connection.
        limit: most connections that the tasks of one event loop have at a time, and most that are kept.
        ca_file: certificates (PEM) to trust for TLS instead of the system's.

    Raises:
        UsageError: `ca_file` cannot be used.
    """

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        limit: int = CONNECTIONS,
        ca_file: Path | None = None,
    ) -> None:
        self._address = address
        self._connect_timeout = connect_timeout
        self._limit = limit
        self._tls = _tls_context(ca_file) if address.tls else None
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()
        self._closed = False
        self._gates = threading.local()

    def exchange(self, request: bytes, seconds: float) -> Response:
        """Send a request and return the response.

        What fails before anything of an answer has arrived is tried once more, on a new connection.

        Args:
            request: the bytes of the whole request, which must be safe to send twice.
            seconds: time for all of it.

        Raises:
            EngineError: no connection, or it broke twice.
            EngineTimeoutError: no whole answer in time.
            AnswerInvalidError: not an HTTP response of the admitted form, or half of one.
        """
        deadline = time.monotonic() + seconds
        try:
            try:
                return self._attempt(self._kept(), request, deadline)
            except OSError:
                return self._attempt(None, request, deadline)
        except (OSError, ResponseError) as error:
            raise self._failure(error, seconds) from error

    async def aexchange(self, request: bytes, seconds: float) -> Response:
        """Do as `exchange`, without blocking the event loop. Waiting until a connection is free counts as well."""
        try:
            async with asyncio.timeout(seconds), self._gate():
                try:
                    return await self._aattempt(self._kept(), request)
                except OSError:
                    return await self._aattempt(None, request)
        except (OSError, ResponseError) as error:
            raise self._failure(error, seconds) from error

    def close(self) -> None:
        """Close what is kept, and what is in use as soon as its request is done. Requests are refused from now on."""
        self._closed = True
        self._drop_kept()

    def _attempt(self, connection: Connection | None, request: bytes, deadline: float) -> Response:
        if connection is None:
            connection = self._open(deadline)
        try:
            response = connection.converse(request, deadline)
        except BaseException:
            connection.close()
            raise
        self._keep(connection, response)
        return response

    async def _aattempt(self, connection: Connection | None, request: bytes) -> Response:
        if connection is None:
            connection = await self._aopen()
        try:
            response = await connection.aconverse(request)
        except BaseException:
            connection.close()
            raise
        self._keep(connection, response)
        return response

    def _open(self, deadline: float) -> Connection:
        until = min(deadline, time.monotonic() + self._connect_timeout)
        try:
            return Connection.open(self._address, self._tls, until)
        except TimeoutError as error:
            if time.monotonic() >= deadline:
                raise
            raise self._unreachable("no connection in time") from error

    async def _aopen(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await Connection.aopen(self._address, self._tls)
        except TimeoutError as error:
            raise self._unreachable("no connection in time") from error

    def _kept(self) -> Connection | None:
        """Return a kept connection that is still good, the last used first."""
        if self._closed:
            raise EngineError(f"OPA at {self._address.url} was not asked: the engine is closed")
        if os.getpid() != self._process:
            # After a fork two processes hold the same sockets, and each would read the other's decisions.
            self._drop_kept()
            self._process = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_quiet():
                return connection
            connection.close()

    def _keep(self, connection: Connection, response: Response) -> None:
        if not response.reusable or len(self._idle) >= self._limit:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:
            self._drop_kept()

    def _drop_kept(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _gate(self) -> asyncio.Semaphore:
        """Return what bounds the tasks of the running event loop; a thread runs one loop at a time."""
        loop = asyncio.get_running_loop()
        known: tuple[object, asyncio.Semaphore] | None = getattr(self._gates, "known", None)
        if known is None or known[0] is not loop:
            known = self._gates.known = (loop, asyncio.Semaphore(self._limit))
        return known[1]

    def _failure(self, error: OSError | ResponseError, seconds: float) -> EngineError:
        if isinstance(error, ResponseError):
            return AnswerInvalidError(
                f"OPA at {self._address.url} {error}", hint="check that OPA itself listens there, and look into its log"
            )
        if isinstance(error, TimeoutError):
            return EngineTimeoutError(
                f"OPA at {self._address.url} did not answer within {seconds:g} s",
                hint="look into its log, or allow more time",
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._unreachable(f"its certificate is not trusted: {error.verify_message}")
        if isinstance(error, ssl.SSLError):
            return self._unreachable(error.reason or "TLS failed")
        # What the system says: asyncio and the address look-up word it in ways of their own.
        if error.errno is not None and error.errno > 0:
            return self._unreachable(os.strerror(error.errno))
        return self._unreachable(error.strerror or str(error))

    def _unreachable(self, why: str) -> EngineError:
        return EngineError(
            f"OPA at {self._address.url} cannot be reached: {why}",
            hint="check that it runs and that the address is right",
        )


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise UsageError(
            f"{ca_file}: cannot be read as certificates: {error.strerror}", hint="give a file in PEM form"
        ) from error
