"""Metrics, logs and traces. Metrics contain no text from a caller; logs contain no query, body or token."""

import logging
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import orjson
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from starlette.types import Scope

from pdp.service.settings import ServiceSettings

_log = logging.getLogger("pdp.service.requests")

_PLAIN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"))
# The folder for metrics that all workers share. prometheus_client defines the variable's name.
WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"

_requests = Counter("pdp_http_requests", "Finished requests", ("route", "status"))
_seconds = Histogram("pdp_http_request_seconds", "Duration of requests, including waits", ("route",))
_decisions = Counter("pdp_decisions", "Decisions by verdict and by family of the reason", ("verdict", "family"))


@cache
def _request_metrics(route: str, status: str) -> tuple[Any, Any]:
    return _requests.labels(route, status), _seconds.labels(route)


@cache
def _decision_metric(verdict: str, family: str) -> Any:
    return _decisions.labels(verdict, family)


def count_decision(verdict: str, codes: Iterable[str]) -> None:
    """Count a decision by verdict and family: its first reason code up to the dot, or `none` without a reason code."""
    family = next(iter(codes), "none").partition(".")[0]
    _decision_metric(verdict, family).inc()


def metrics_text() -> bytes:
    """Return the metrics of all workers in Prometheus' text format."""
    registry = REGISTRY
    if WORKERS_FOLDER in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def request_ended(scope: Scope, status: int | None, seconds: float, span: Span | None) -> None:
    """Count and log a finished request, and complete its span if there is one."""
    state = scope["state"]
    principal, route = state["principal"], state["route"]
    count, duration = _request_metrics(route, str(status or "none"))
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
