"""Spans and metrics of tool calls with OpenTelemetry, which is imported only if an application creates a `Telemetry`.

Source: tool pattern library, 9.6: spans `tool.<name>.dispatch` (caller, scopes, arguments' hash, idempotency key, the
policy's verdict), `.run` (duration, retry count, downstream span links), `.result` (outcome, result hash, exceptions);
metrics throughput, success_ratio, p50, p99, error_class_distribution, cost_per_call. Pattern 1: spans of an extraction
carry the lineage of its model.

These names stay. OpenTelemetry's conventions (`pdp.execution.conventions`) add attributes, by which backends recognise
a run as `execute_tool`, a span `run_guardrail pdp` for the decision, and a metric.
"""

import logging
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import Any, Final

from pdp.contract.sensitive import place_of
from pdp.execution import conventions
from pdp.execution.failures import ToolError
from pdp.installed import extra
from pdp.manifest.fields import latency_seconds

with extra("otel"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import Observation
    from opentelemetry.trace import Status, StatusCode

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Token

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider
from opentelemetry.trace import Span, TracerProvider

from pdp.manifest.model import DeclaredTool
from pdp.proposal import Execution

_log = logging.getLogger("pdp.execution")

SCOPE: Final = "pdp"  # The name of the instrumentation scope of all spans and metrics.

_LINEAGE: Final = ("model", "version", "prompt")
_MOST_EXCEPTIONS: Final = 16
_LONGEST_TEXT: Final = 128
_LATENCY_BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Telemetry:
    """Records spans and metrics of tool calls with OpenTelemetry. Its errors are logged and do not fail the call.

    Spans are `tool.NAME.dispatch`, and `.run` and `.result` in it. Metrics are `tool.throughput`, `tool.success_ratio`,
    `tool.latency`, `tool.error_class_distribution` and `tool.cost_per_call`.

    Args:
        tracer_provider: creates the spans; by default, the global provider.
        meter_provider: creates the metrics; by default, the global provider.
        costs: by tool, a function that returns the cost of a result in a unit of your choice, or None if unknown.

    Examples:
        >>> from pdp import Pep
        >>> telemetry = Telemetry(costs={"lookup_beneficiary": lambda result: 0.01})
        >>> with Pep.from_project("pdp.yaml", telemetry=telemetry) as pep:
        ...     evaluation = pep.decide({"tool": "shell", "arguments": {}}, {"claims": {"sub": "officer-123"}})
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        costs: Mapping[str, Callable[[Any], float | None]] | None = None,
    ) -> None:
        self.tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider, schema_url=conventions.SCHEMA_URL)
        self.costs = dict(costs or {})
        self.lock = threading.Lock()
        self.runs: Counter[str] = Counter()
        self.successes: Counter[str] = Counter()
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider, schema_url=conventions.SCHEMA_URL)
        self.throughput = meter.create_counter("tool.throughput", unit="{call}", description="Runs that have ended")
        options: dict[str, Any] = {"unit": "s", "explicit_bucket_boundaries_advisory": _LATENCY_BUCKETS}
        options["description"] = "Duration of runs, with all attempts"
        self.latency = meter.create_histogram("tool.latency", **options)
        self.duration = meter.create_histogram(conventions.DURATION, **options)
        self.errors = meter.create_counter(
            "tool.error_class_distribution", unit="{call}", description="Runs that failed, by code and exception"
        )
        self.cost = meter.create_histogram("tool.cost_per_call", description="Cost of runs")
        meter.create_observable_gauge(
            "tool.success_ratio", [self._ratios], unit="1", description="Share of runs that succeeded"
        )

    def _ratios(self, _: CallbackOptions) -> Iterable[Observation]:
        with self.lock:
            ratios = {tool: self.successes[tool] / runs for tool, runs in self.runs.items()}
        return [Observation(ratio, {"pdp.tool": tool}) for tool, ratio in ratios.items()]


class CallTelemetry:
    """The spans of one decided call: a dispatch span that contains the spans of decision, run and result.

    Call `run_started` and `run_ended` around the run, and `ended` in any case. `began` is in seconds since 1970. If the
    manifest has no such tool, the spans are named `unknown`, so that a model cannot invent span names. An allowed call
    has all three spans, even if no tool ran; the run span then has no duration.
    """

    __slots__ = ("_began", "_entry", "_named", "_run", "_seconds", "_span", "_telemetry", "_token", "_tool")

    def __init__(
        self, telemetry: Telemetry, entry: DeclaredTool | None, began: float, attributes: Mapping[str, Any]
    ) -> None:
        self._telemetry = telemetry
        self._entry = entry
        self._tool = "unknown" if entry is None else entry.name
        self._span: Span | None = None
        self._run: Span | None = None
        self._token: Token[Context] | None = None
        self._began = 0.0
        self._seconds: float | None = None
        self._named = {"pdp.tool": self._tool, conventions.TOOL_NAME: self._tool} | {
            name: attributes[own] for own, name in conventions.NAMES.items() if own in attributes
        }
        # The time stays an integer, because a float cannot represent nanoseconds exactly.
        start = round(began * 1_000_000) * 1000
        with _harmless("dispatch"):
            self._span = telemetry.tracer.start_span(
                f"tool.{self._tool}.dispatch", attributes={**self._named, **attributes}, start_time=start
            )
            verdict = conventions.VERDICTS.get(attributes.get("pdp.verdict", ""), "deny")
            decision = conventions.GUARDRAIL | {conventions.VERDICT: verdict}
            self._start("run_guardrail pdp", decision, start).end()

    def run_started(self) -> None:
        """Open the run span and make it the current span."""
        self._began = time.perf_counter()
        with _harmless("run"):
            self._run = self._start(f"tool.{self._tool}.run", {conventions.OPERATION: "execute_tool"})
            self._token = context.attach(trace.set_span_in_context(self._run))

    def run_ended(self, execution: Execution) -> None:
        """Close the run span, and record the run's duration, retries and cost."""
        self._seconds = time.perf_counter() - self._began
        with _harmless("run"):
            token, self._token = self._token, None
            if token is not None:
                context.detach(token)
            span, self._run = self._run, None
            if span is not None:
                span.set_attributes({"pdp.duration_s": self._seconds, "pdp.retry_count": execution.attempts - 1})
                span.set_attributes(self._objective)
                _close(span, execution)
        cost_of = self._telemetry.costs.get(self._tool)
        if cost_of is not None and execution.failure is None:
            with _harmless("cost"):
                cost = cost_of(execution.result)
                if cost is not None:
                    self._telemetry.cost.record(cost, {"pdp.tool": self._tool})

    def ended(self, execution: Execution | None, attributes: Mapping[str, Any]) -> None:
        """Create the result span, count the run if there was one, and close the dispatch span.

        If the call was not allowed, `execution` is None and `attributes` are added to the dispatch span.
        """
        if execution is not None:
            self._end_result(execution, attributes)
        with _harmless("dispatch"):
            if self._span is not None:
                if execution is None:
                    self._span.set_attributes(attributes)
                self._span.end()

    def _end_result(self, execution: Execution, attributes: Mapping[str, Any]) -> None:
        if self._run is not None:
            self.run_ended(execution)
        with _harmless("result"):
            emitted, lineage = _emitted(execution, self._entry)
            if self._seconds is None:
                replayed = {"pdp.replayed": True} if execution.replayed else {}
                _close(self._start(f"tool.{self._tool}.run", replayed), execution)
            _close(self._start(f"tool.{self._tool}.result", {**attributes, **emitted, **lineage}), execution)
            if self._span is not None:
                self._span.set_attributes(lineage)
        if self._seconds is not None:
            with _harmless("metrics"):
                self._count(execution, self._seconds)

    @property
    def _objective(self) -> dict[str, str]:
        """The lowest latency percentile in the tool's `sla` that the run met, or `exceeded` if the run met none."""
        sla = self._entry.sla if self._entry is not None else None
        if not sla or self._seconds is None:
            return {}
        kept = [(latency_seconds(latency), name) for name, latency in sla.items()]
        return {"pdp.sla": min((pair for pair in kept if self._seconds <= pair[0]), default=(0.0, "exceeded"))[1]}

    def _start(self, name: str, attributes: Mapping[str, Any], start_time: int | None = None) -> Span:
        parent = None if self._span is None else trace.set_span_in_context(self._span)
        attributes = {**self._named, **attributes}
        return self._telemetry.tracer.start_span(name, parent, attributes=attributes, start_time=start_time)

    def _count(self, execution: Execution, seconds: float) -> None:
        telemetry, of_tool = self._telemetry, {"pdp.tool": self._tool}
        with telemetry.lock:
            telemetry.runs[self._tool] += 1
            telemetry.successes[self._tool] += execution.failure is None
        telemetry.throughput.add(1, {**of_tool, "pdp.outcome": execution.outcome, **self._objective})
        telemetry.latency.record(seconds, of_tool)
        error = {} if execution.failure is None else {conventions.ERROR_TYPE: _error_class(execution)}
        telemetry.duration.record(seconds, {conventions.TOOL_NAME: self._tool, **error})
        if execution.failure is not None:
            telemetry.errors.add(1, {**of_tool, "pdp.error_code": execution.failure.code.value, **error})


@contextmanager
def _harmless(part: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - telemetry must not fail the call
        _log.error("telemetry failed at %s: %s", part, place_of(error))


def _close(span: Span, execution: Execution) -> None:
    # Only the type of the exception is recorded, because its traceback may contain sensitive values.
    if execution.failure is not None:
        span.set_attribute(conventions.ERROR_TYPE, _error_class(execution))
        span.set_status(Status(StatusCode.ERROR, f"{execution.failure.code}: {execution.failure.message}"))
    span.end()


def _emitted(execution: Execution, entry: DeclaredTool | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the failure's error class or the result's exception kinds, and the model's lineage, as span attributes."""
    if execution.failure is not None:
        return {"pdp.exceptions": (_error_class(execution),)}, {}
    result = execution.result if entry is not None and entry.pattern is not None else None
    # The result usually has the structure that its pattern requires, but an obligation may have changed the structure.
    exceptions, lineage = _member(result, "exceptions", list), _member(result, "lineage", dict)
    kinds = {_member(item, "kind", str)[:_LONGEST_TEXT] for item in exceptions[:_MOST_EXCEPTIONS]} - {""}
    models = {
        f"pdp.lineage.{name}": _member(lineage, name, str)[:_LONGEST_TEXT] for name in _LINEAGE if name in lineage
    }
    return {"pdp.exceptions": tuple(sorted(kinds))} if kinds else {}, models


def _member(value: Any, name: str, kind: type[Any]) -> Any:
    member = value.get(name) if isinstance(value, dict) else None
    return member if isinstance(member, kind) else kind()


def _error_class(execution: Execution) -> str:
    """Return the class of an error for metrics: its kind or the broken pattern rule, else the Python class."""
    error = execution.error
    if error is not None:
        # Exceptions of other libraries may have an attribute of this name with any value.
        named = (getattr(error, name, None) for name in ("kind", "rule") if isinstance(error, ToolError))
        return next(filter(None, named), type(error).__name__)
    return "none" if execution.failure is None else execution.failure.code.value
