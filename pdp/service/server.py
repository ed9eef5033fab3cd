"""The server behind `pdp serve`: its port, its worker processes, TLS, and limits for slow and large requests."""

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
# A worker that sends no sign of life for this many seconds is replaced. It may also take this long to start.
_SILENT_SECONDS: Final = 60
_HEALTH: Final = (b"/healthz", b"/readyz")
_SPARE: Final = 64  # The number of additional connections that are reserved for health checks.
_OTHER_FILES: Final = 128  # The number of files that a process opens in addition to its connections.


class _BoundedHttp(HttpToolsProtocol):
    """An HTTP/1.1 connection. Closes if the head exceeds 10 s or 64 KiB, or if the client reads nothing for 20 s.

    At the connection limit, a new connection replaces the connection that has been idle for longest. If no connection
    is idle, the new connection may only request the health endpoints.
    """

    _idle: ClassVar[dict["_BoundedHttp", None]] = {}  # The idle connections of this process, ordered from the oldest.
    _in_head = False
    _head_bytes = 0
    _fields_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, transport.close)
        self._idle[self] = None
        excess, oldest = len(self.connections) - (self.config.limit_concurrency or 0), next(iter(self._idle))
        if excess >= (0 if oldest is not self else _SPARE):
            del self._idle[oldest]
            self.connections.discard(oldest)
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The limit also applies to the head of a second request that arrives before the first request is answered.
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
        # The sizes are added up, because many short fields of a long head may arrive at once.
        self._fields_bytes += size
        if self._fields_bytes > _HEAD_BYTES:
            # For this error, Uvicorn answers 400 and closes the connection.
            raise ValueError("the request's head is too long")

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Supervisor(Multiprocess):
    """Restarts worker processes that have ended or stopped answering, and logs the reason."""

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
                _log.error("worker %s could not start, the service stops: see the worker's log lines", worker.pid)
                self.should_exit.set()
                return
            why = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
            why = why if code is not None else f"no answer for {_SILENT_SECONDS} s"
            _log.error("worker %s ended: %s; starting a new worker", worker.pid, why)
            self.processes[at] = Process(self.config, self.sockets)
            self.processes[at].start()


def check_service(settings: ServiceSettings) -> None:
    """Check the configuration by opening and closing every resource. Raise EngineError if an engine fails."""
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
    *,
    first_tokens: bool = True,
) -> None:
    """Serve until a signal stops the process. Then requests get up to 20 s; waits for approvals end at once.

    `started` gets the settings, with the bound port, and the `first_tokens` of new tenants. `app` makes the
    application; shutdown sets the event `ending` in its state. Raises UsageError if the address or the TLS files
    cannot be used.
    """
    _check_tls(settings)
    # After its shutdown, Uvicorn raises the signal again. This handler then ends the process with exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _bound_socket(settings) as bound, ExitStack() as ended:
        settings = settings.model_copy(update={"port": bound.getsockname()[1]})
        with ExitStack() as owned:
            store = Service(settings, owned).tokens.tokens
            tokens = {tenant: first_token(store, tenant) for tenant in settings.tenants if first_tokens}
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
            limit_concurrency=_max_connections(settings),
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
        sys.exit(1)  # Uvicorn's own exit code is replaced, because for this command it would mean STEP_UP.


def _bound_socket(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        bound = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        # The system's message repeats the address, so that part is removed.
        why = str(error.strerror).partition(" (while ")[0]
        raise UsageError(
            f"cannot listen on {settings.host}, port {settings.port}: {why}",
            hint="choose another address with --host and --port",
        ) from None
    bound.set_inheritable(True)
    return bound


def _max_connections(settings: ServiceSettings) -> int:
    """Raise the process's limit of open files, and return the maximum number of connections per process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = settings.limits.connections
    return most if hard == resource.RLIM_INFINITY else min(most, max(hard - _OTHER_FILES - _SPARE, 1))


def _check_tls(settings: ServiceSettings) -> None:
    if settings.tls_cert is None:
        return
    cert, key = settings.tls_cert, settings.tls_key or settings.tls_cert
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        hint = "use PEM files of one certificate and its key, without a password"
        for name, file, label in (("tls_cert", cert, "CERTIFICATE"), ("tls_key", key, "PRIVATE KEY")):
            try:
                content = file.read_bytes()
            except OSError as unread:
                raise UsageError(f"{name} {file}: cannot be read: {unread.strerror}", hint="check the path") from None
            if f"{label}-----".encode() not in content:
                raise UsageError(f"{name} {file}: no {label.lower()} in PEM form (BEGIN {label})", hint=hint) from None
        is_foreign = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        why = "the key belongs to another certificate" if is_foreign else "damaged, or a key with a password"
        raise UsageError(f"tls_cert {cert}, tls_key {key}: cannot be loaded: {why}", hint=hint) from None
