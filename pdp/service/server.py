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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import uvicorn
from cryptography import x509
from prometheus_client import multiprocess
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from pdp.audit.chain import AuditEvent
from pdp.errors import BundleError, EngineError, PdpError, UsageError
from pdp.service.app import create_app
from pdp.service.security.authorization_code import check_provider
from pdp.service.security.tokens import first_token, open_tokens
from pdp.service.settings import ServiceSettings
from pdp.service.state import Readiness, Service, Tenant, check_distinct_stores, open_tenant
from pdp.service.telemetry import RESTARTS, WORKERS_FOLDER, log_config

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
            self._count_restart(worker.pid)
            self.processes[at] = Process(self.config, self.sockets)
            self.processes[at].start()

    def _count_restart(self, pid: int | None) -> None:
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
        file = MmapedDict(f"{os.environ[WORKERS_FOLDER]}/counter_{os.getpid()}.db")  # type: ignore[no-untyped-call]
        key = mmap_key(RESTARTS[0], f"{RESTARTS[0]}_total", [], [], RESTARTS[1])
        file.write_value(key, file.read_value(key)[0] + 1, 0)  # type: ignore[no-untyped-call]
        file.close()  # type: ignore[no-untyped-call]


def check_service(settings: ServiceSettings) -> None:
    """Open and ask all that is configured: files, stores, engines, providers. Raise one fault and log the others."""
    faults: dict[str, PdpError] = {}
    with ExitStack() as owned:
        tenants = {}
        with _noted(faults):
            _check_tls(settings)
        for name, tenant in settings.tenants.items():
            with _noted(faults):
                tenants[name] = open_tenant(name, tenant, settings.url, owned)
        with _noted(faults):
            check_distinct_stores(tenants)
            open_tokens(settings, owned)
        asyncio.run(_ask(settings, tenants, faults))
    # The fault that is raised decides the exit code, so those of files and options come first.
    ordered = sorted(faults.values(), key=lambda fault: not isinstance(fault, UsageError | BundleError))
    for fault in ordered[1:]:
        _log.error("%s", fault)
    if ordered:
        raise ordered[0]


@contextmanager
def _noted(faults: dict[str, PdpError]) -> Iterator[None]:
    try:
        yield
    except PdpError as error:
        faults[str(error)] = error


async def _ask(settings: ServiceSettings, tenants: dict[str, Tenant], faults: dict[str, PdpError]) -> None:
    for name, tenant in tenants.items():
        for state in (await Readiness(tenants).states(tenant)).values():
            with _noted(faults):
                if state["status"] != "ready":
                    raise EngineError(
                        f"tenant {name}: {state['code']}: {state['why']}",
                        hint=f"for the remedy, run: pdp explain {state['code']}",
                    )
    for oidc in settings.oidc:
        with _noted(faults):
            await check_provider(oidc)


def serve_until_ended(
    settings: ServiceSettings,
    started: Callable[[ServiceSettings, dict[str, str]], object],
    app: Callable[[ServiceSettings], ASGIApp] = create_app,
    *,
    first_tokens: bool = True,
) -> None:
    """Serve until a signal stops the process. Then requests get up to 20 s; waits for approvals end at once.

    `started` gets the settings, with the bound port, and the `first_tokens` of new tenants, or where they are. `app`
    makes the application; shutdown sets the event `ending` in its state. Raises UsageError if the address, the TLS
    files or `first_token_file` cannot be used.
    """
    _check_tls(settings)
    # After its shutdown, Uvicorn raises the signal again. This handler then ends the process with exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _bound_socket(settings) as bound, ExitStack() as ended:
        settings = settings.model_copy(update={"port": bound.getsockname()[1]})
        with ExitStack() as owned:
            service = Service(settings, owned)
            tokens = _first_tokens(service) if first_tokens else {}
        started(settings, tokens)
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


def _first_tokens(service: Service) -> dict[str, str]:
    """Record the first tokens of new tenants, and return them, or where `first_token_file` is that contains them."""
    file, made = service.settings.first_token_file, dict[str, str]()

    def keep(tenant: Tenant, token: str, event: AuditEvent, transaction: object) -> None:
        if file is not None:
            line = f"{token}\n" if len(service.tenants) == 1 else f"{tenant.name} {token}\n"
            try:
                descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | (0 if made else os.O_CREAT | os.O_EXCL), 0o600)
                with os.fdopen(descriptor, "w") as opened:
                    opened.write(line)
                    opened.flush()
                    os.fsync(descriptor)
            except OSError as error:
                hint = "move an older file away, and name a file in a folder that this user can write"
                raise UsageError(f"first_token_file {file}: cannot be written: {error.strerror}", hint=hint) from None
        tenant.stream.append_within(event, transaction)

    for name in [name for name in service.tenants if not service.tokens.tokens.list(name)]:
        token = first_token(service.tokens.tokens, name, partial(keep, service.tenants[name]))
        if token is None:
            break  # Another process creates the first tokens.
        made[name] = token if file is None else f"see {file}"
    return made


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
    """Check that the certificate and its key can be used. Warn about a certificate that is not valid today."""
    if settings.tls_cert is None:
        return
    cert, key = settings.tls_cert, settings.tls_key or settings.tls_cert
    hint = "use PEM files; to convert a DER file: openssl {} -inform der -in FILE -out FILE.pem"
    for name, file, label, kind in (("tls_cert", cert, "CERTIFICATE", "x509"), ("tls_key", key, "PRIVATE KEY", "pkey")):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(f"{name} {file}: cannot be read: {error.strerror}", hint="check the path") from None
        if f"{label}-----".encode() not in content:
            why = f"no {label.lower()} in PEM form (BEGIN {label})" if content.strip() else "is empty"
            raise UsageError(f"{name} {file}: {why}", hint=hint.format(kind))
        if name == "tls_key" and b"ENCRYPTED" in content:  # OpenSSL would ask for the password on the terminal.
            raise UsageError(f"{name} {file}: has a password", hint=f"remove it: openssl pkey -in {file} -out FILE")
    read = list[x509.Certificate]()
    try:
        read += x509.load_pem_x509_certificates(cert.read_bytes())
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, settings.tls_key)
    except (ValueError, OSError) as error:
        why = f"tls_{'key' if read else 'cert'} {key if read else cert}: is damaged: it cannot be decoded"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            why = f"tls_key {key}: belongs to another certificate than the first one in tls_cert {cert}"
        raise UsageError(why, hint="copy both files again; in a chain, the server's certificate is the first") from None
    since, until = read[0].not_valid_before_utc, read[0].not_valid_after_utc
    if not since <= datetime.now(UTC) <= until:
        _log.warning("tls_cert %s is valid from %s to %s: clients reject it; replace it", cert, since, until)
