"""A telemetry whose spans and metrics stay in memory, in OpenTelemetry's own exporters."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pdp.execution.telemetry import Telemetry


class Collected:
    """A telemetry whose spans and metrics stay in memory."""

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
        """Each metric's values by attributes: what was counted, or how often a histogram was filled."""
        return {
            name: [
                (dict(point.attributes or {}), point.count if isinstance(point, HistogramDataPoint) else point.value)
                for point in points
            ]
            for name, points in self.points().items()
        }
