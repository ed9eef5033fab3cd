"""Spans and metrics of calls, read from the in-memory exporters of OpenTelemetry."""

import importlib
import logging
import subprocess
import sys
from typing import Any, Never

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from opentelemetry.trace import StatusCode

from pdp.errors import MissingExtraError
from pdp.execution.conventions import SCHEMA_URL
from pdp.execution.failures import failure_of
from pdp.execution.runner import arun_once, cut_short, run_once
from pdp.execution.telemetry import CallTelemetry, Telemetry
from pdp.manifest.model import DeclaredTool
from pdp.proposal import Execution
from tests.support.scripted import Collected

ATTRIBUTES = {"pdp.verdict": "ALLOW", "pdp.caller": "officer-123", "pdp.scopes": ("payments.wire.initiate",)}


ENTRY = DeclaredTool.model_validate({"name": "send_wire", "schema": {"type": "object"}})


def dispatched(telemetry: Telemetry) -> CallTelemetry:
    return CallTelemetry(telemetry, ENTRY, 1_782_900_000.25, ATTRIBUTES)


RESULT = {"pdp.outcome": "as the audit has it"}


def ran(collected: Collected, execution: Execution) -> None:
    call = dispatched(collected.telemetry)
    call.run_started()
    call.run_ended(execution)
    call.ended(execution, RESULT)


TOOL = {"pdp.tool": "send_wire"}
NAMED = {**TOOL, "gen_ai.tool.name": "send_wire"}


def test_successful_call_has_three_spans(caplog: pytest.LogCaptureFixture) -> None:
    collected = Collected()

    ran(collected, Execution(result=1, attempts=3))

    spans = collected.spans()
    names = ["run_guardrail pdp", "tool.send_wire.run", "tool.send_wire.result", "tool.send_wire.dispatch"]
    assert list(spans) == names
    decision, run_span, result, dispatch = spans.values()
    assert dict(dispatch.attributes or {}) == {**NAMED, **ATTRIBUTES}
    assert dict(decision.attributes or {}) == {
        **NAMED, "gen_ai.operation.name": "run_guardrail", "gen_ai.guardrail.component.name": "pdp",
        "gen_ai.guardrail.target.type": "input", "gen_ai.guardrail.target.subtype": "tool_call",
        "gen_ai.guardrail.verdict.type": "allow",
    }  # fmt: skip
    assert decision.instrumentation_scope is not None
    assert decision.instrumentation_scope.schema_url == SCHEMA_URL
    measured = dict(run_span.attributes or {})
    assert measured.pop("pdp.duration_s") >= 0  # type: ignore[operator]
    assert measured == {**NAMED, "gen_ai.operation.name": "execute_tool", "pdp.retry_count": 2}
    assert dict(result.attributes or {}) == {**NAMED, **RESULT}
    assert dispatch.parent is None
    assert [span.parent and span.parent.span_id for span in (decision, run_span, result)] == [
        dispatch.context.span_id
    ] * 3
    assert dispatch.start_time == decision.start_time == 1_782_900_000_250_000_000
    assert {span.status.status_code for span in spans.values()} == {StatusCode.UNSET}
    assert caplog.records == []


@pytest.mark.parametrize(
    ("execution", "outcome", "error_class", "message"),
    [
        (
            Execution(failure=failure_of(LookupError("no /srv/x")), error=LookupError("no /srv/x")),
            "failed",
            "LookupError",
            "TOOL_EXECUTION_FAILED: LookupError",
        ),
        (
            cut_short(),
            "unknown",
            "TOOL_EXECUTION_FAILED",
            "TOOL_EXECUTION_FAILED: the caller was cancelled or interrupted while the tool ran",
        ),
    ],
)
def test_failed_run_has_spans_with_error_status(
    execution: Execution, outcome: str, error_class: str, message: str
) -> None:
    collected = Collected()

    ran(collected, execution)

    spans = collected.spans()
    result = spans["tool.send_wire.result"]
    error = {"error.type": error_class}
    assert dict(result.attributes or {}) == {**NAMED, **RESULT, "pdp.exceptions": (error_class,), **error}
    for span in (result, spans["tool.send_wire.run"]):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, message)
        assert span.events == ()
    assert collected.counts()["tool.error_class_distribution"] == [
        ({**TOOL, "pdp.error_code": "TOOL_EXECUTION_FAILED", "error.type": error_class}, 1)
    ]


def test_metrics_count_runs_errors_and_costs() -> None:
    collected = Collected(costs={"send_wire": lambda result: result["cents"] if result else None})
    failed = Execution(failure=failure_of(LookupError("no")), error=LookupError("no"))

    for execution in (Execution(result={"cents": 3}), Execution(result={"cents": 4}), Execution(), failed):
        ran(collected, execution)

    assert collected.counts() == {
        "tool.throughput": [
            ({**TOOL, "pdp.outcome": "succeeded"}, 3),
            ({**TOOL, "pdp.outcome": "failed"}, 1),
        ],
        "tool.success_ratio": [(TOOL, 0.75)],
        "tool.latency": [(TOOL, 4)],
        "gen_ai.execute_tool.duration": [
            ({"gen_ai.tool.name": "send_wire"}, 3),
            ({"gen_ai.tool.name": "send_wire", "error.type": "LookupError"}, 1),
        ],
        "tool.error_class_distribution": [
            ({**TOOL, "pdp.error_code": "TOOL_EXECUTION_FAILED", "error.type": "LookupError"}, 1)
        ],
        "tool.cost_per_call": [(TOOL, 2)],
    }
    (cost,) = collected.points()["tool.cost_per_call"]
    assert isinstance(cost, HistogramDataPoint)
    assert (cost.sum, cost.min, cost.max) == (7, 3, 4)


@pytest.mark.parametrize("way", ["plain", "timed", "coroutine", "asynchronous"])
async def test_spans_of_a_tool_are_children_of_its_run_span(way: str) -> None:
    collected = Collected()
    tracer = collected.provider.get_tracer("tool")

    def tool() -> None:
        with tracer.start_as_current_span("downstream"):
            pass

    async def atool() -> None:
        tool()

    call = dispatched(collected.telemetry)
    call.run_started()
    if way == "coroutine":
        run_once(atool, {}, 30)
    elif way == "asynchronous":
        await arun_once(atool, {}, 30)
    else:
        run_once(tool, {}, 30 if way == "timed" else None)
    call.run_ended(Execution())
    assert not trace.get_current_span().get_span_context().is_valid
    call.ended(Execution(), RESULT)

    spans = collected.spans()
    parent = spans["downstream"].parent
    assert parent is not None
    assert parent.span_id == spans["tool.send_wire.run"].context.span_id


def test_span_of_an_interrupted_run_ends_with_the_call() -> None:
    collected = Collected()

    call = dispatched(collected.telemetry)
    call.run_started()
    call.ended(cut_short(), RESULT)

    assert set(collected.spans()) - {"run_guardrail pdp"} == {
        f"tool.send_wire.{phase}" for phase in ("run", "result", "dispatch")
    }
    assert collected.counts()["tool.throughput"] == [({**TOOL, "pdp.outcome": "unknown"}, 1)]
    assert not trace.get_current_span().get_span_context().is_valid


class BrokenTracer(trace.Tracer):
    """A tracer that raises exceptions."""

    def start_span(self, *args: Any, **kwargs: Any) -> Never:
        raise LookupError("collector is gone")

    start_as_current_span = start_span


class BrokenProvider(trace.TracerProvider):
    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return BrokenTracer()


def test_failing_telemetry_is_logged_and_does_not_affect_calls(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry(tracer_provider=BrokenProvider(), costs={"send_wire": lambda result: result["cents"]})

    with caplog.at_level(logging.ERROR):
        call = dispatched(telemetry)
        call.run_started()
        call.run_ended(Execution())
        call.ended(Execution(), RESULT)

    assert [message.partition(":")[0] for message in caplog.messages] == [
        "telemetry failed at dispatch", "telemetry failed at run", "telemetry failed at cost",
        "telemetry failed at result",
    ]  # fmt: skip


@pytest.mark.process
def test_opentelemetry_is_not_imported_without_telemetry() -> None:
    program = (
        "import sys, pdp.execution.events, pdp.execution.runner, pdp.pep;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'tenacity')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_missing_opentelemetry_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "pdp.execution.telemetry")

    with pytest.raises(MissingExtraError, match=r"pip install 'tool-pdp\[otel\]'"):
        importlib.import_module("pdp.execution.telemetry")
