"""What can be seen of calls through the enforcement point: events for observers in the process, spans and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pdp import Approvals, EmbeddedEngine, Evaluation, MemoryAudit, Pep
from pdp.errors import UsageError
from pdp.execution.events import ToolEvent
from pdp.execution.telemetry import Telemetry
from pdp.manifest.effective import EffectiveManifest
from tests.support import desk
from tests.support.desk import Desk, propose, session, told


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> EffectiveManifest:
    return desk.effective(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def engine(manifest: EffectiveManifest) -> Iterator[EmbeddedEngine]:
    with desk.engine(manifest) as opened:
        yield opened


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[ToolEvent] = []

    def __call__(self, event: ToolEvent) -> None:
        self.events.append(event)
        event.data["arguments"]["amount"] = "changed by an observer"

    @property
    def actions(self) -> list[str]:
        return [event.action for event in self.events]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def called(pep: Pep, way: str, proposal: Any, **which: Any) -> Evaluation:
    if way == "waiting":
        return pep.call(proposal, session(), **which)
    return asyncio.run(pep.acall(proposal, session(), **which))


both_ways = pytest.mark.parametrize("way", ["waiting", "asynchronously"])


@both_ways
def test_observers_are_told_of_start_and_end_with_arguments_masked(
    manifest: EffectiveManifest, engine: EmbeddedEngine, seen: Seen, way: str
) -> None:
    works, other = Desk(), Seen()
    pep = Pep(manifest, engine, tools=works.tools(), observers=[seen, other])
    called(pep, way, propose("keep_draft"), tool_call_id="toolu-1", step_name="draft")

    start, end = (event.as_json() for event in seen.events)
    call_id = start["data"]["call_id"]
    data = {
        "call_id": call_id, "request_id": "req-1", "tool_call_id": "toolu-1", "step_name": "draft",
        "tool": "keep_draft", "arguments": {"account": "***", "amount": "changed by an observer"},
    }  # fmt: skip
    assert start == {"timestamp": start["timestamp"], "layer": "tool", "action": "execute_start", "data": data}
    assert end == {
        "timestamp": end["timestamp"], "layer": "tool", "action": "execute_end", "duration": end["duration"],
        "data": {**data, "attempts": 1},
    }  # fmt: skip
    assert other.actions == ["execute_start", "execute_end"]
    assert works.runs == [("keep_draft", 5)]


@both_ways
def test_a_failure_is_told_as_the_model_is_told_it(
    manifest: EffectiveManifest, engine: EmbeddedEngine, seen: Seen, way: str
) -> None:
    pep = Pep(manifest, engine, tools=Desk(fails=RuntimeError("no account cash")).tools(), observers=[seen])
    called(pep, way, propose("keep_draft"))

    assert [event.error for event in seen.events] == [None, "TOOL_EXECUTION_FAILED: RuntimeError"]


def test_what_does_not_run_is_no_event(manifest: EffectiveManifest, engine: EmbeddedEngine, seen: Seen) -> None:
    pep = Pep(manifest, engine, tools=Desk().tools(), observers=[seen], approvals=Approvals())
    for proposal in (
        propose("send_letter"),
        propose("no_tool"),
        propose("keep_draft", amount="x"),
        propose("pay_small"),
    ):
        pep.call(proposal, session())
    pep.decide(propose("keep_draft"), session())
    assert seen.events == []

    for _ in range(2):
        pep.call(propose("book_entry"), session())
    assert seen.actions == ["execute_start", "execute_end"]


async def test_a_cancelled_run_is_told_as_cancelled(
    manifest: EffectiveManifest, engine: EmbeddedEngine, seen: Seen
) -> None:
    begun = asyncio.Event()

    async def keep_draft(account: str, amount: float) -> None:
        begun.set()
        await asyncio.sleep(60)

    pep = Pep(manifest, engine, tools={"keep_draft": keep_draft}, observers=[seen])
    task = asyncio.create_task(pep.acall(propose("keep_draft"), session()))
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    start, end = seen.events
    told_of = "TOOL_EXECUTION_FAILED: the caller was cancelled or interrupted while the tool ran"
    assert (start.action, end.action, end.error) == ("execute_start", "execute_cancelled", told_of)
    assert end.duration is not None


def test_an_observer_that_fails_harms_nobody(
    manifest: EffectiveManifest, engine: EmbeddedEngine, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def blind(event: ToolEvent) -> None:
        raise RuntimeError("blind")

    pep = Pep(manifest, engine, tools=Desk().tools(), observers=[blind, seen])

    assert pep.call(propose("keep_draft"), session()).executed
    assert seen.actions == ["execute_start", "execute_end"]
    assert caplog.messages == [
        f"an observer failed at {action} of tool keep_draft" for action in ("execute_start", "execute_end")
    ]


def test_an_observer_that_is_none_is_refused(manifest: EffectiveManifest, engine: EmbeddedEngine) -> None:
    async def never(event: ToolEvent) -> None: ...

    for observer in (never, "x"):
        with pytest.raises(UsageError, match="is not a plain function"):
            Pep(manifest, engine, observers=[observer])  # type: ignore[list-item]


class Collected:
    """A telemetry whose spans and metrics stay in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.telemetry = Telemetry(
            tracer_provider=self.provider, meter_provider=MeterProvider([self.reader]), **options
        )

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def metrics(self) -> set[str]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {metric.name for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@both_ways
def test_a_run_has_three_spans_and_the_tools_own_are_within(
    manifest: EffectiveManifest, engine: EmbeddedEngine, way: str
) -> None:
    collected = Collected(costs={"keep_draft": lambda result: 2})
    tracer = trace.get_tracer("tool", tracer_provider=collected.provider)

    def keep_draft(account: str, amount: float) -> dict[str, Any]:
        with tracer.start_as_current_span("own"):
            return {"kept": account}

    pep = Pep(manifest, engine, tools={"keep_draft": keep_draft}, telemetry=collected.telemetry)
    called(pep, way, propose("keep_draft"), tool_call_id="toolu-1", step_name="draft")

    spans = collected.spans()
    dispatch, run, result = (spans[f"tool.keep_draft.{what}"] for what in ("dispatch", "run", "result"))
    assert isinstance(pep.audit, MemoryAudit)
    before, after = pep.audit.events
    assert attributes(dispatch) == {
        "pdp.tool": "keep_draft", "pdp.verdict": "ALLOW", "pdp.caller": "ann", "pdp.scopes": ("desk",),
        "pdp.arguments_digest": before["arguments_digest"], "pdp.idempotency_key": "key-1",
        "pdp.request_id": "req-1", "pdp.tool_call_id": "toolu-1", "pdp.step_name": "draft",
    }  # fmt: skip
    assert attributes(result) == {
        "pdp.tool": "keep_draft", "pdp.outcome": "succeeded", "pdp.result_digest": after["result_digest"],
    }  # fmt: skip
    assert dispatch.context is not None
    assert run.context is not None
    assert [span.parent and span.parent.span_id for span in (dispatch, run, result, spans["own"])] == [
        None, dispatch.context.span_id, dispatch.context.span_id, run.context.span_id,
    ]  # fmt: skip
    assert collected.metrics() == {
        "tool.throughput", "tool.latency", "tool.success_ratio", "tool.cost_per_call",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("proposal", "name", "verdict"),
    [
        pytest.param(propose("send_letter"), "send_letter", "STEP_UP", id="a person is asked"),
        pytest.param(propose("no_tool"), "unknown", None, id="not a tool"),
        pytest.param(propose("keep_draft", amount="x"), "keep_draft", None, id="rejected"),
    ],
)
def test_what_does_not_run_has_a_dispatch_span_alone(
    manifest: EffectiveManifest, engine: EmbeddedEngine, proposal: Any, name: str, verdict: str | None
) -> None:
    collected = Collected()
    Pep(manifest, engine, tools=Desk().tools(), telemetry=collected.telemetry).call(proposal, session())

    [span] = collected.exporter.get_finished_spans()
    assert (span.name, attributes(span).get("pdp.verdict")) == (f"tool.{name}.dispatch", verdict)
    assert collected.reader.get_metrics_data() is None


def test_a_telemetry_that_fails_harms_no_call(
    manifest: EffectiveManifest, engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(result: Any) -> float:
        raise KeyError("usage")

    collected = Collected(costs={"keep_draft": unknown})
    pep = Pep(manifest, engine, tools=Desk().tools(), telemetry=collected.telemetry)

    assert pep.call(propose("keep_draft"), session()).executed
    assert told(pep) == [("tool.keep_draft.dispatch", "ALLOW"), ("tool.keep_draft.result", "succeeded")]
    assert caplog.messages == ["telemetry failed at cost"]
