"""An engine with scripted answers, and a telemetry that collects spans and metrics in memory."""

from collections.abc import Callable
from typing import Any

import orjson
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pdp.decision import GRANT
from pdp.engine.protocol import DECISION, Engine
from pdp.execution.telemetry import Telemetry


def answer(verdict: str = "ALLOW", *obligations: dict[str, Any], code: str | None = None) -> dict[str, Any]:
    """Return a decision document with these obligations and one reason. For an ALLOW, the reason is a grant."""
    code = code or (GRANT if verdict == "ALLOW" else "scripted.said")
    return {
        "verdict": verdict,
        "reasons": [{"code": code, "message": "as the test says", "details": {}}],
        "obligations": [{"on": verdict, **obligation} for obligation in obligations],
        "bundle": {"revision": "sha256:1", "release": 1},
    }


def duty(name: str, /, **parameters: Any) -> dict[str, Any]:
    return {"id": name, "parameters": parameters}


def until_approved(request: dict[str, Any]) -> dict[str, Any]:
    """Return STEP_UP for a request without an approval, and ALLOW for a request with an approval."""
    return answer("STEP_UP", code="approvals.required") if request["context"]["approval"] is None else answer()


class Scripted(Engine):
    """An engine that calls `respond` for each decision and records the requests."""

    name = "scripted"

    def __init__(self, respond: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.respond = respond
        self.asked: list[dict[str, Any]] = []

    def evaluate(self, body: bytes, document: str = DECISION) -> bytes:
        request = orjson.loads(body)
        self.asked.append(request)
        return orjson.dumps(self.respond(request))


class Collected:
    """A telemetry that collects spans and metrics in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader])
        self.telemetry = Telemetry(tracer_provider=self.provider, meter_provider=meters, **options)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def points(self) -> dict[str, list[NumberDataPoint | HistogramDataPoint]]:
        data = self.reader.get_metrics_data()
        points: dict[str, list[NumberDataPoint | HistogramDataPoint]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "pdp"
                for metric in scope.metrics:
                    points[metric.name] = list(metric.data.data_points)  # type: ignore[arg-type]
        return points

    def counts(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Return the value of each metric by attributes. The value of a histogram is the number of recorded values."""
        return {
            name: [
                (dict(point.attributes or {}), point.count if isinstance(point, HistogramDataPoint) else point.value)
                for point in points
            ]
            for name, points in self.points().items()
        }
