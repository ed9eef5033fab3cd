"""What can be seen of calls through the enforcement point: events for observers in the process, spans and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from pdp import Approvals, MemoryAudit, Pep
from pdp.errors import UsageError
from pdp.execution.events import ToolEvent
from tests.support import PATIENCE
from tests.support.desk import Call, Desk, both_ways, propose, session
from tests.support.scripted import Collected


def observed(base: Pep, works: Desk, **options: Any) -> Pep:
    return Pep(base.manifest, base.engine, **{"tools": works.tools(), **options})


class Seen:
    """An observer that holds its events."""

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


@both_ways
def test_observers_are_told_of_start_and_end_with_arguments_masked(
    base: Pep, works: Desk, seen: Seen, call: Call
) -> None:
    other = Seen()
    pep = observed(base, works, observers=[seen, other])
    call(pep, propose("keep_draft"), session(), tool_call_id="toolu-1", step_name="draft")

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
def test_a_failure_is_told_as_the_model_is_told_it(base: Pep, works: Desk, seen: Seen, call: Call) -> None:
    works.fails = RuntimeError("no account cash")
    pep = observed(base, works, observers=[seen])
    call(pep, propose("keep_draft"), session())

    assert [event.error for event in seen.events] == [None, "TOOL_EXECUTION_FAILED: RuntimeError"]


def test_what_does_not_run_is_no_event(base: Pep, works: Desk, seen: Seen) -> None:
    pep = observed(base, works, observers=[seen], approvals=Approvals())
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


async def test_a_cancelled_run_is_told_as_cancelled(base: Pep, works: Desk, seen: Seen) -> None:
    begun = asyncio.Event()

    async def keep_draft(account: str, amount: float) -> None:
        begun.set()
        await asyncio.sleep(60)

    pep = observed(base, works, tools={"keep_draft": keep_draft}, observers=[seen])
    task = asyncio.create_task(pep.acall(propose("keep_draft"), session()))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    start, end = seen.events
    message = "TOOL_EXECUTION_FAILED: the caller was cancelled or interrupted while the tool ran"
    assert (start.action, end.action, end.error) == ("execute_start", "execute_cancelled", message)
    assert end.duration is not None


def test_an_observer_that_fails_harms_nobody(
    base: Pep, works: Desk, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def blind(event: ToolEvent) -> None:
        raise RuntimeError("blind")

    pep = observed(base, works, observers=[blind, seen])

    assert pep.call(propose("keep_draft"), session()).executed
    assert seen.actions == ["execute_start", "execute_end"]
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        f"an observer failed at {action} of tool keep_draft" for action in ("execute_start", "execute_end")
    ]


def test_an_invalid_observer_is_refused(base: Pep, works: Desk) -> None:
    async def never(event: ToolEvent) -> None: ...

    for observer in (never, "x"):
        with pytest.raises(UsageError, match="is not a plain function"):
            observed(base, works, observers=[observer])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@both_ways
def test_a_run_has_three_spans_and_the_tools_own_are_within(base: Pep, works: Desk, call: Call) -> None:
    collected = Collected(costs={"keep_draft": lambda result: 2})
    tracer = trace.get_tracer("tool", tracer_provider=collected.provider)

    def keep_draft(account: str, amount: float) -> dict[str, Any]:
        with tracer.start_as_current_span("own"):
            return {"kept": account}

    pep = observed(base, works, tools={"keep_draft": keep_draft}, telemetry=collected.telemetry)
    call(pep, propose("keep_draft"), session(), tool_call_id="toolu-1", step_name="draft")

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
    assert collected.counts().keys() == {
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
    base: Pep, works: Desk, proposal: Any, name: str, verdict: str | None
) -> None:
    collected = Collected()
    observed(base, works, telemetry=collected.telemetry).call(proposal, session())

    [span] = collected.exporter.get_finished_spans()
    assert (span.name, attributes(span).get("pdp.verdict")) == (f"tool.{name}.dispatch", verdict)
    assert collected.reader.get_metrics_data() is None
