"""What `pdp serve` starts: a bound port, processes that serve it, TLS, bounds on slow and large requests."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from pdp.errors import EngineError, UsageError
from pdp.service.app import create_app
from pdp.service.security.tokens import first_token
from pdp.service.settings import ServiceSettings
from pdp.service.state import Service
from pdp.service.telemetry import WORKERS_FOLDER, log_config

_log = logging.getLogger("pdp.service")

_HEAD_SECONDS: Final = 10.0
_HEAD_BYTES: Final = 64 * 1024
_GRACE_SECONDS: Final = 20
_SILENT_SECONDS: Final = 60  # after which a silent worker is replaced; a start may take as long
_HEALTH: Final = (b"/healthz", b"/readyz")
_SPARE: Final = 64  # extra connections, for health alone
_OTHER_FILES: Final = 128  # open in a process beside its connections


class _BoundedHttp(HttpToolsProtocol):
    """HTTP/1.1 of one connection. A head over 10 s or 64 KiB ends it, and so do 20 s without reading.

    When a process has all the connections that it may have, a new one ends the one that has been without a request for
    longest. Where all have one, requests for health are still answered. When the process is told to end, `ending` in
    the application's state is set: what waits answers then.
    """

    _idle: ClassVar[dict[_BoundedHttp, None]] = {}  # connections of this process without a request, the oldest first
    _in_head = False
    _head_bytes = 0
    _fields_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, transport.close)
        self._idle[self] = None
        over, oldest = len(self.connections) - (self.config.limit_concurrency or 0), next(iter(self._idle))
        if over >= (0 if oldest is not self else _SPARE):
            del self._idle[oldest]
            self.connections.discard(oldest)
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A head is bounded also where the request before it is still open.
        if self._in_head or self.cycle is None or self.cycle.response_complete:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.transport.close()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._fields_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._end_timer()
        self._idle.pop(self, None)
        self.limit_concurrency = None if self.url in _HEALTH else self.config.limit_concurrency
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(_GRACE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._write_timer.cancel()
        super().resume_writing()

    def shutdown(self) -> None:
        self.app_state["ending"].set()
        super().shutdown()

    def _count(self, size: int) -> None:
        # Many short fields of a long head may come at once.
        self._fields_bytes += size
        if self._fields_bytes > _HEAD_BYTES:
            raise ValueError("the head is too long")  # the server answers 400 and closes the connection

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Supervisor(Multiprocess):
    """Replaces workers that end, and logs why. A worker may take a minute to start, or to answer."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._heard: dict[Process, float] = {}

    def keep_subprocess_alive(self) -> None:
        now = time.monotonic()
        for at, worker in enumerate(() if self.should_exit.is_set() else self.processes):
            pipe = worker.parent_conn
            if worker.exitcode is None and (worker not in self._heard or pipe.poll()):
                _ = pipe.poll() and pipe.recv()
                pipe.send(b"ping")
                self._heard[worker] = now
            code = worker.exitcode
            if code is None and now - self._heard[worker] < _SILENT_SECONDS:
                continue
            worker.kill()
            worker.join()
            self._heard.pop(worker, None)
            if code == STARTUP_FAILURE:
                _log.error("worker %s could not start, so the service ends: its log lines say why", worker.pid)
                self.should_exit.set()
                return
            why = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
            why = why if code is not None else f"no answer for {_SILENT_SECONDS} s"
            _log.error("worker %s ended: %s; a new worker starts", worker.pid, why)
            self.processes[at] = Process(self.config, self.sockets)
            self.processes[at].start()


def check_service(settings: ServiceSettings) -> None:
    """Open all that the service would use, and close it: what is wrong with it is raised as `Service` raises it.

    EngineError: an engine does not answer; the service would start, and deny.
    """
    _check_tls(settings)
    with ExitStack() as owned:
        for name, tenant in Service(settings, owned).tenants.items():
            decision = tenant.pep.engine.decide_body(b"{}")
            if decision.bundle_revision is None:
                reason = decision.reasons[0]
                raise EngineError(f"tenant {name}: {reason.code}: {reason.message}", hint=reason.remedy)


def serve_until_ended(
    settings: ServiceSettings,
    started: Callable[[ServiceSettings, dict[str, str]], object],
    app: Callable[[ServiceSettings], ASGIApp] = create_app,
) -> None:
    """Serve until a signal ends it: open requests are answered, for 20 s at most; what waits answers at once.

    With several workers a parent process restarts those that die. `started` is told the settings with the bound port,
    and by tenant the token that the first start makes. `app`: what is served; its state has an event `ending`.

    UsageError: the address cannot be bound, or the TLS files cannot be used. Who cannot start exits with 1.
    """
    _check_tls(settings)
    # The server raises the signal again when all has ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _bound(settings) as bound, ExitStack() as ended:
        settings = settings.model_copy(update={"port": bound.getsockname()[1]})
        with ExitStack() as owned:
            store = Service(settings, owned).tokens.tokens
            tokens = {tenant: first_token(store, tenant) for tenant in settings.tenants}
        started(settings, {tenant: token for tenant, token in tokens.items() if token is not None})
        config = uvicorn.Config(
            partial(app, settings),
            factory=True,
            host=settings.host,
            port=settings.port,
            http=_BoundedHttp,
            loop="uvloop",
            ws="none",
            lifespan="on",
            workers=settings.workers,
            log_config=log_config(settings),
            access_log=False,
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=[str(each) for each in settings.proxies],
            server_header=False,
            limit_concurrency=_most_connections(settings),
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_worker_healthcheck=_SILENT_SECONDS,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        if settings.workers > 1:
            os.environ[WORKERS_FOLDER] = ended.enter_context(TemporaryDirectory(prefix="pdp-metrics-"))
            supervisor = _Supervisor(config, sockets=[bound])
            supervisor.run()
            is_failed = STARTUP_FAILURE in (worker.exitcode for worker in supervisor.processes)
        else:
            is_failed = False
            try:
                uvicorn.Server(config).run(sockets=[bound])
            except SystemExit as end:
                is_failed = end.code == STARTUP_FAILURE
    if is_failed:
        sys.exit(1)  # not with the library's own code, which is that of STEP_UP here


def _bound(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        bound = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (while ")[0]  # the address follows, which is said already
        raise UsageError(
            f"{settings.host}, port {settings.port}: cannot be bound: {why}",
            hint="choose others with --host and --port",
        ) from None
    bound.set_inheritable(True)
    return bound


def _most_connections(settings: ServiceSettings) -> int:
    """Return how many connections one process has, with the files that it may open raised to the system's limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = settings.limits.connections
    return most if hard == resource.RLIM_INFINITY else min(most, max(hard - _OTHER_FILES - _SPARE, 1))


def _check_tls(settings: ServiceSettings) -> None:
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(str(settings.tls_cert), settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"tls_cert, tls_key: cannot be used: {error}", hint="PEM files, the key without a password"
        ) from None
