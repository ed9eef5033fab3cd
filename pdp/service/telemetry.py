"""Counters, logs and traces. Metrics contain no text from a caller; logs contain no query, body or token."""

import logging
import time
from collections.abc import Container, Iterable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import orjson
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from starlette.types import Scope

from pdp.engine.protocol import DECISION, Engine
from pdp.service.settings import ServiceSettings

_log = logging.getLogger("pdp.service.requests")
_tokens_log = logging.getLogger("pdp.service.tokens")

_MOST_LINES: Final = 20  # The maximum number of refused tokens that are logged in a minute.

_PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"))
# The folder for metrics that all workers share. prometheus_client defines the variable's name.
WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_requests = Counter("pdp_http_requests", "Answered requests", ("route", "status"))
_seconds = Histogram("pdp_http_request_seconds", "Duration of requests, including waits for approvals", ("route",))
_decisions = Counter(
    "pdp_decisions",
    "Decisions; the concern is the first code up to the dot, or none",
    ("tenant", "verdict", "tool", "concern"),
)
_engine_seconds = Histogram("pdp_decision_seconds", "Duration of the engine's decisions", ("tenant",), buckets=_SECONDS)
_store_seconds = Histogram(
    "pdp_store_seconds", "Duration of database transactions", ("tenant", "store"), buckets=_SECONDS
)
audit_failures = Counter("pdp_audit_write_failures", "Failed transactions of the audit stream", ("tenant",))
_refusals = Counter("pdp_token_refusals", "Refused tokens by reason", ("reason",))
webhook_failures = Counter("pdp_webhook_failures", "Failed attempts to send a webhook message", ("tenant", "webhook"))
sweep_failures = Counter("pdp_sweep_failures", "Failed sweeps", ("tenant",))
swept = Gauge(
    "pdp_sweep_last_success_timestamp_seconds", "Time when the last sweep ended", ("tenant",), multiprocess_mode="max"
)
workers = Gauge("pdp_workers", "Running worker processes", multiprocess_mode="livesum")
RESTARTS: Final = ("pdp_worker_restarts", "Workers that the supervisor has replaced")
_ = Counter(*RESTARTS)  # It starts at zero. Only the supervisor counts, in a file of the workers' folder.


@cache
def _child(metric: Any, *labels: str) -> Any:
    return metric.labels(*labels)


def count_decision(tenant: str, tools: Container[str], tool: Any, verdict: str, codes: Iterable[str]) -> None:
    """Count a decision by its `tool`, or `unknown` if it is not one of `tools`, and by its first reason's family."""
    name = tool if isinstance(tool, str) and tool in tools else "unknown"
    _child(_decisions, tenant, verdict, name, next(iter(codes), "none").partition(".")[0]).inc()


def time_engine(engine: Engine, tenant: str) -> None:
    """Record the duration of each evaluation of a tenant's engine."""
    observe, evaluate, aevaluate = _engine_seconds.labels(tenant).time, engine.evaluate, engine.aevaluate

    def timed(body: bytes, document: str = DECISION) -> bytes:
        with observe():
            return evaluate(body, document)

    async def atimed(body: bytes, document: str = DECISION) -> bytes:
        with observe():
            return await aevaluate(body, document)

    # The engine's own methods are replaced, so that other processes than the service need no code for this.
    is_async = type(engine).aevaluate is not Engine.aevaluate
    vars(engine).update({"evaluate": timed} | ({"aevaluate": atimed} if is_async else {}))


def store_used(tenant: str, store: str, seconds: float, failed: bool) -> None:  # noqa: FBT001 - called by position
    """Record a transaction of a tenant's store. Only tokens belong to no tenant."""
    _child(_store_seconds, tenant, store).observe(seconds)
    if failed and store == "audit":
        audit_failures.labels(tenant).inc()


def request_ended(scope: Scope, status: int | None, seconds: float, span: Span | None) -> None:
    """Count and log a finished request, and complete its span if there is one."""
    state = scope["state"]
    principal, route = state["principal"], state["route"]
    _child(_requests, route, str(status or "none")).inc()
    _child(_seconds, route).observe(seconds)
    if span is not None:
        span.update_name(f"{scope['method']} {route}")
        span.set_attributes({
            "http.request.method": scope["method"], "http.route": route, "http.response.status_code": status or 0,
            "pdp.request_id": state["request_id"],
        })  # fmt: skip
    if _log.isEnabledFor(logging.INFO):
        request = {
            "request_id": state["request_id"], "tenant": principal and principal.tenant,
            "principal": principal and principal.id, "method": scope["method"], "route": route, "status": status,
            "ms": round(seconds * 1000, 1),
        }  # fmt: skip
        _log.info("%s %s %s", scope["method"], route, status, extra=request)


def request_span(scope: Scope, tracer: Tracer) -> AbstractContextManager[Span]:
    """Start a trace span for a request, as a child of the span that the request's headers name."""
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    caller = TraceContextTextMapPropagator().extract(carrier)
    return tracer.start_as_current_span(scope["method"], context=caller, kind=SpanKind.SERVER)


def tracer_provider(settings: ServiceSettings, owned: ExitStack) -> TracerProvider | None:
    """Return an OpenTelemetry provider that exports spans until `owned` is closed; None without `otlp_endpoint`."""
    if settings.otlp_endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
    from opentelemetry.sdk import trace as sdk  # noqa: PLC0415 - only needed with an endpoint
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only needed with an endpoint
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - only needed with an endpoint

    provider = sdk.TracerProvider(resource=Resource.create({"service.name": "pdp"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint)))
    owned.callback(provider.shutdown)
    return provider


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, logger, message, the fields of `extra`, and the error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _PLAIN},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode(errors="replace")


def log_config(settings: ServiceSettings) -> dict[str, Any]:
    """Return the logging configuration of one process, for `logging.config.dictConfig`."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "json"}},
        "loggers": {name: {"handlers": ["err"], "level": level, "propagate": False} for name in ("pdp", "uvicorn")},
    }


class RefusedTokens:
    """Counts refused tokens, and logs at most 20 a minute, so that an attacker cannot fill the log."""

    def __init__(self) -> None:
        self._ends, self._lines, self._left_out = 0.0, 0, 0

    def report(self, about: dict[str, Any]) -> None:
        """Report a refusal: its `reason` and other fields. The line says how many were left out before it."""
        _refusals.labels(about["reason"]).inc()
        if time.monotonic() >= self._ends:
            self._ends, self._lines = time.monotonic() + 60, 0
        self._lines += 1
        self._left_out += self._lines > _MOST_LINES
        if self._lines <= _MOST_LINES:
            _tokens_log.warning("refused a token: %s", about["reason"], extra={**about, "left_out": self._left_out})
            self._left_out = 0
