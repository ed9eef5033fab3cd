"""Metrics, logs with request ids, traces that continue the caller's.

Nothing that a caller writes becomes a metric's label, and the log has no query, body or token.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, multiprocess

if TYPE_CHECKING:
    from starlette.types import Scope

    from pdp.service.settings import ServiceSettings

_log = logging.getLogger("pdp.service.requests")

_PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"))
WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # the library's own name, for what the workers of one service count

_requests = Counter("pdp_http_requests", "Requests that have ended", ("route", "status"))
_seconds = Histogram("pdp_http_request_seconds", "How long requests took, waits included", ("route",))
_decisions = Counter("pdp_decisions", "Decisions, by the concern of their first reason", ("verdict", "family"))


@cache
def _counted(route: str, status: str) -> tuple[Any, Any]:
    return _requests.labels(route, status), _seconds.labels(route)


@cache
def _decided(verdict: str, family: str) -> Any:
    return _decisions.labels(verdict, family)


def count_decision(verdict: str, codes: Iterable[str]) -> None:
    """Count one decision. Its family is what stands before the dot in the first of its reason codes.

    Both are `none` for a proposal that a contract check has rejected before.
    """
    family = next(iter(codes), "none").partition(".")[0]
    _decided(verdict, family).inc()


def metrics_text() -> bytes:
    """Return all metrics, of all workers, in Prometheus' text format."""
    registry = REGISTRY
    if WORKERS_FOLDER in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def request_ended(scope: Scope, status: int | None, seconds: float, span: Span | None) -> None:
    """Count and log one request, and say in its span, if it has one, what became of it."""
    state = scope["state"]
    principal, route = state["principal"], state["route"]
    count, duration = _counted(route, str(status or "none"))
    count.inc()
    duration.observe(seconds)
    if span is not None:
        span.update_name(f"{scope['method']} {route}")
        span.set_attributes(
            {
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status or 0,
                "pdp.request_id": state["request_id"],
            }
        )
    if _log.isEnabledFor(logging.INFO):
        request = {
            "request_id": state["request_id"],
            "tenant": principal and principal.tenant,
            "principal": principal and principal.id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        _log.info("%s %s %s", scope["method"], route, status, extra=request)


def request_span(scope: Scope, tracer: Tracer) -> AbstractContextManager[Span]:
    """Return a span for one request, within that of its caller."""
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    caller = TraceContextTextMapPropagator().extract(carrier)
    return tracer.start_as_current_span(scope["method"], context=caller, kind=SpanKind.SERVER)


def tracer_provider(settings: ServiceSettings, owned: ExitStack) -> TracerProvider | None:
    """Return what makes spans and exports them, until `owned` is closed; None where no endpoint is configured."""
    if settings.otlp_endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - only then
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - likewise
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - likewise
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - likewise

    provider = TracerProvider(resource=Resource.create({"service.name": "pdp"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint)))
    owned.callback(provider.shutdown)
    return provider


class JsonLines(logging.Formatter):
    """One line of JSON for each record: time, level, logger, message, what was given as `extra`, and an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Return the configuration of logging for one process, as of `logging.config`."""
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "json"}},
        "loggers": {name: {"handlers": ["err"], "level": level, "propagate": False} for name in ("pdp", "uvicorn")},
    }
