"""Observability of calls: events for observers in the same process, spans and metrics."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from pdp import MemoryAudit, Pep
from pdp.errors import UsageError
from pdp.execution.events import ToolEvent
from pdp.manifest.effective import EffectiveManifest
from pdp.manifest.load import load_effective
from pdp.patterns.exceptions import NotFoundError, ToolException
from tests.support import PATIENCE
from tests.support.desk import Call, Desk, both_ways, events, propose, session
from tests.support.scripted import Collected, Scripted, answer


def observed(base: Pep, works: Desk, **options: Any) -> Pep:
    return Pep(base.manifest, base.engine, **{"tools": works.tools(), **options})


class Seen:
    """An observer that collects its events."""

    def __init__(self) -> None:
        self.events: list[ToolEvent] = []

    def __call__(self, event: ToolEvent) -> None:
        self.events.append(event)
        event.data["args"]["amount"] = "changed by an observer"

    @property
    def actions(self) -> list[str]:
        return [event.action for event in self.events]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@both_ways
def test_observers_get_start_and_end_events_with_masked_arguments(
    base: Pep, works: Desk, seen: Seen, call: Call
) -> None:
    other = Seen()
    pep = observed(base, works, observers=[seen, other])
    call(pep, propose("keep_draft"), session(), tool_call_id="toolu-1", step_name="draft")

    start, end = (event.as_json() for event in seen.events)
    data = {
        "call_id": "toolu-1", "request_id": "req-1", "tool_call_id": "toolu-1", "step_name": "draft",
        "name": "keep_draft", "args": {"account": "***", "amount": "changed by an observer"},
    }  # fmt: skip
    assert start == {"timestamp": start["timestamp"], "layer": "tool", "action": "execute_start", "data": data}
    assert end == {
        "timestamp": end["timestamp"], "layer": "tool", "action": "execute_end", "duration": end["duration"],
        "data": {**data, "attempts": 1},
    }  # fmt: skip
    assert other.actions == ["execute_start", "execute_end"]
    assert works.runs == [("keep_draft", 5)]


@pytest.mark.parametrize("proposal", [propose("keep_draft"), {"type": "tool_use", "id": "t", "name": "keep_draft"}])
def test_event_of_invalid_session_has_the_proposed_tool_name(base: Pep, works: Desk, seen: Seen, proposal: Any) -> None:
    pep = observed(base, works, observers=[seen])
    called = pep.call(proposal, {"claims": 7})

    assert [(event.action, event.data["name"]) for event in seen.events] == [("execute_end", "keep_draft")]
    assert (called.trace.tool_name, events(pep)[0]["tool_name"]) == ("keep_draft", "keep_draft")


def test_event_of_unreadable_arguments_has_the_proposed_tool_name(base: Pep, works: Desk, seen: Seen) -> None:
    pep = observed(base, works, observers=[seen])
    call = {"id": "c", "type": "function", "function": {"name": "keep_draft", "arguments": "{"}}

    assert pep.call(call, session()).outcome.rejection is not None
    assert [event.data["name"] for event in seen.events] == ["keep_draft"]


@both_ways
def test_event_has_the_failure_that_the_model_sees(base: Pep, works: Desk, seen: Seen, call: Call) -> None:
    works.fails = RuntimeError("no account cash")
    pep = observed(base, works, observers=[seen])
    call(pep, propose("keep_draft"), session())

    assert [event.error for event in seen.events] == [None, "TOOL_EXECUTION_FAILED: RuntimeError"]


@pytest.mark.parametrize(
    ("proposal", "name", "args", "error"),
    [
        pytest.param(
            propose("no_tool"), "no_tool", {"account": "***", "amount": "***"},
            "INVALID_TOOL_NAME: 'no_tool' is not a tool of manifest 2026.1.0", id="not in the manifest",
        ),
        pytest.param("[]", "", {}, "INVALID_PAYLOAD: a proposal is an object with tool and arguments, not a list",
            id="not a proposal"),
        pytest.param(
            propose("keep_draft", amount="x"), "keep_draft", {"account": "***", "amount": "x"},
            'INVALID_PAYLOAD: arguments.amount: "x" is not of type "number"', id="invalid",
        ),
        pytest.param(
            propose("send_letter"), "send_letter", {"account": "cash", "amount": 5},
            "POLICY_VIOLATION: STEP_UP: approvals.required: ", id="STEP_UP",
        ),
        pytest.param(
            propose("pay_small"), "pay_small", {"account": "cash", "amount": 5},
            "TOOL_EXECUTION_FAILED: commit.unstaged: ", id="rejected by a pattern",
        ),
        pytest.param(
            propose("drop_note"), "drop_note", {"account": "cash", "amount": 5},
            "TOOL_UNAVAILABLE: no function is registered for drop_note", id="unavailable",
        ),
    ],
)  # fmt: skip
def test_call_whose_tool_does_not_run_emits_only_one_event(
    base: Pep, works: Desk, proposal: Any, name: str, args: dict[str, Any], error: str
) -> None:
    """The tool layer document requires that the events of the layer `tool` show everything that tools do."""
    got: list[dict[str, Any]] = []
    tools = {name: tool for name, tool in works.tools().items() if name != "drop_note"}
    pep = observed(base, works, tools=tools, observers=[lambda event: got.append(event.as_json())])
    pep.call(proposal, session())

    [event] = got
    assert event.pop("error").startswith(error)
    assert len(event["data"].pop("call_id")) == 32
    assert event == {
        "timestamp": event["timestamp"], "layer": "tool", "action": "execute_end",
        "data": {
            "request_id": "req-1", "tool_call_id": None, "step_name": None, "name": name, "args": args, "attempts": 0,
        },
    }  # fmt: skip


def test_repeated_call_with_a_stored_result_emits_one_event_and_decide_emits_none(base: Pep, works: Desk) -> None:
    got: list[ToolEvent] = []
    pep = observed(base, works, observers=[got.append])
    pep.decide(propose("book_entry"), session())
    for _ in range(2):
        pep.call(propose("book_entry"), session())

    assert [(event.action, event.data.get("attempts"), event.data.get("replayed")) for event in got] == [
        ("execute_start", None, None), ("execute_end", 1, None), ("execute_end", 0, True),
    ]  # fmt: skip
    assert (got[-1].duration, got[-1].error) == (None, None)


async def test_cancelled_run_emits_execute_cancelled(base: Pep, works: Desk, seen: Seen) -> None:
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


def test_failing_observer_does_not_affect_the_call(
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


def test_invalid_observer_is_rejected(base: Pep, works: Desk) -> None:
    async def never(event: ToolEvent) -> None: ...

    for observer in (never, "x"):
        with pytest.raises(UsageError, match="is not a plain function"):
            observed(base, works, observers=[observer])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span that the source document names. Those of OpenTelemetry have other tests."""
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith("pdp.")}


@both_ways
def test_call_has_three_spans_and_its_run_span_is_the_parent_of_the_tools_spans(
    base: Pep, works: Desk, call: Call
) -> None:
    collected = Collected(costs={"keep_draft": lambda result: 2})
    tracer = trace.get_tracer("tool", tracer_provider=collected.provider)

    def keep_draft(account: str, amount: float) -> dict[str, Any]:
        with tracer.start_as_current_span("own"):
            return {"kept": account}

    pep = observed(base, works, tools={"keep_draft": keep_draft}, telemetry=collected.telemetry)
    call(pep, propose("keep_draft"), session(), tool_call_id="toolu-1", step_name="draft")

    spans = collected.spans()
    dispatch, run, result = (spans[f"tool.keep_draft.{what}"] for what in ("dispatch", "run", "result"))
    named = {"gen_ai.tool.name": "keep_draft", "gen_ai.tool.call.id": "toolu-1"}
    assert named.items() <= dict(run.attributes or {}).items()
    assert isinstance(pep.audit, MemoryAudit)
    before, after = pep.audit.events
    assert attributes(dispatch) == {
        "pdp.tool": "keep_draft", "pdp.verdict": "ALLOW", "pdp.caller": "ann", "pdp.scopes": ("desk",),
        "pdp.arguments_digest": before["arguments_digest"], "pdp.idempotency_key": "key-1",
        "pdp.request_id": "req-1", "pdp.tool_call_id": "toolu-1", "pdp.step_name": "draft", "pdp.risk_tier": "low",
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
        "tool.throughput", "tool.latency", "tool.success_ratio", "tool.cost_per_call", "gen_ai.execute_tool.duration",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("proposal", "name", "verdict"),
    [
        pytest.param(propose("send_letter"), "send_letter", "STEP_UP", id="STEP_UP"),
        pytest.param(propose("no_tool"), "unknown", None, id="not a tool"),
        pytest.param(propose("keep_draft", amount="x"), "keep_draft", None, id="rejected"),
    ],
)
def test_call_that_is_not_allowed_has_a_dispatch_span_and_no_run_span(
    base: Pep, works: Desk, proposal: Any, name: str, verdict: str | None
) -> None:
    collected = Collected()
    observed(base, works, telemetry=collected.telemetry).call(proposal, session())

    decision, span = collected.exporter.get_finished_spans()
    assert (span.name, attributes(span).get("pdp.verdict")) == (f"tool.{name}.dispatch", verdict)
    word = "escalate" if verdict == "STEP_UP" else "deny"
    assert (decision.attributes or {})["gen_ai.guardrail.verdict.type"] == word
    assert collected.reader.get_metrics_data() is None


# Span attributes from the results of tools with a pattern. The policy allows all calls.


MANIFEST = """
manifest_version: 2026.1.0
tools:
  - name: find_record
    version: 1.0.0
    pattern: lookup
    risk_tier: low
    markings: []
    sla: {p99: 999999s, p50: 0.000001ms}
    schema:
      type: object
      required: [identifier, source]
      properties: {identifier: {type: string, maxLength: 9}, source: {$ref: SoRRef}}
    result_schema:
      type: object
      properties: {branch: {type: string}, exceptions: {type: array, items: {$ref: ExceptionRef}}}
  - name: extract_sum
    version: 1.0.0
    pattern: extraction
    risk_tier: low
    markings: []
    sla: {p50: 0.000001ms}
    schema: {type: object, required: [source], properties: {source: {$ref: SourceRef}}}
    result_schema:
      type: object
      required: [value, evidence, confidence]
      properties:
        value: {type: number}
        evidence: {$ref: EvidenceSpan}
        confidence: {$ref: Confidence}
        lineage: {$ref: ModelLineage}
  - name: search_guides
    version: 1.0.0
    pattern: search
    risk_tier: low
    markings: []
    schema:
      type: object
      required: [query, corpus, k]
      properties: {query: {type: string, maxLength: 9}, corpus: {$ref: CorpusRef}, k: {type: integer, minimum: 1}}
    result_schema:
      type: object
      required: [spans, retrievalSnapshotId]
      properties: {spans: {type: array, items: {$ref: EvidenceSpan}}, retrievalSnapshotId: {type: string}}
"""
FIND = {"tool": "find_record", "arguments": {"identifier": "ann", "source": {"id": "crm", "version": "7"}}}
EXTRACT = {"tool": "extract_sum", "arguments": {"source": {"id": "letter"}}}
SEARCH = {"tool": "search_guides", "arguments": {"query": "fire", "corpus": {"id": "guides"}, "k": 2}}
EXTRACTED = {"value": 1, "evidence": {"source": {"id": "letter"}}, "confidence": 0.9}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> EffectiveManifest:
    file: Path = tmp_path_factory.mktemp("record") / "manifest.yaml"
    file.write_text(MANIFEST)
    return load_effective(file, None)


def library(manifest: EffectiveManifest, collected: Collected, tool: str, result: Callable[[], Any]) -> Pep:
    """Return an enforcement point with one tool of the pattern library and a policy that allows all calls."""

    def run(**_: Any) -> Any:
        return result()

    return Pep(manifest, Scripted(lambda _: answer()), tools={tool: run}, telemetry=collected.telemetry)


def own_attributes(collected: Collected, tool: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of each span of a tool, except the attributes that the spans of all tools have."""
    common = ("pdp.tool", "pdp.verdict", "pdp.caller", "pdp.scopes", "pdp.duration_s", "pdp.retry_count")
    spans = {name: attributes(span) for name, span in collected.spans().items()}
    return {
        name.rpartition(".")[2]: {
            key: value
            for key, value in span.items()
            if key not in common and not key.endswith(("_digest", "_id", "_key", "_tier"))
        }
        for name, span in spans.items()
        if name.startswith(f"tool.{tool}.")
    }


def test_run_span_of_a_replayed_result_is_marked_and_has_no_duration(base: Pep, works: Desk) -> None:
    collected = Collected()
    pep = Pep(base.manifest, base.engine, tools=works.tools(), telemetry=collected.telemetry)

    for _ in range(2):
        pep.call(propose("read_entry"), session())

    assert works.runs == [("read_entry", 5)]
    assert [event["replayed"] for event in events(pep)] == [None, False, None, True]
    first, again = events(pep)[1::2]
    assert first["result_digest"] == again["result_digest"]
    *_, run, result, dispatch = collected.exporter.get_finished_spans()
    assert [span.name for span in (run, result, dispatch)] == [
        f"tool.read_entry.{phase}" for phase in ("run", "result", "dispatch")
    ]
    assert attributes(run) == {"pdp.tool": "read_entry", "pdp.replayed": True}
    assert attributes(result) == {
        "pdp.tool": "read_entry", "pdp.outcome": "succeeded", "pdp.replayed": True,
        "pdp.result_digest": again["result_digest"],
    }  # fmt: skip
    assert collected.counts()["tool.throughput"] == [({"pdp.tool": "read_entry", "pdp.outcome": "succeeded"}, 1)]


def test_lookup_answered_from_a_cached_record_is_recorded_as_replay(manifest: EffectiveManifest) -> None:
    collected = Collected()
    pep = library(manifest, collected, "find_record", lambda: {"branch": "north"})

    for _ in range(2):
        assert pep.call(FIND, session()).result == {"branch": "north"}

    assert [event["replayed"] for event in events(pep)] == [None, False, None, True]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        pytest.param({"branch": "north"}, {"pdp.outcome": "succeeded"}, id="none"),
        pytest.param(
            {"exceptions": [{"kind": "stale_replica"}, {"kind": "not_found"}, {"kind": "not_found"}]},
            {"pdp.outcome": "succeeded", "pdp.exceptions": ("not_found", "stale_replica")},
            id="in the result",
        ),
        pytest.param(
            NotFoundError("no ann"),
            {"pdp.outcome": "failed", "pdp.error_code": "TOOL_EXECUTION_FAILED", "pdp.exceptions": ("not_found",)},
            id="raised",
        ),
        pytest.param(
            {"exceptions": "many"},
            {
                "pdp.outcome": "failed", "pdp.error_code": "TOOL_EXECUTION_FAILED",
                "pdp.exceptions": ("ToolResultError",),
            },
            id="not matching the schema",
        ),
    ],
)  # fmt: skip
def test_result_span_names_the_exceptions_that_the_tool_returned_or_raised(
    manifest: EffectiveManifest, result: Any, expected: dict[str, Any]
) -> None:
    def find() -> Any:
        if isinstance(result, ToolException):
            raise result
        return result

    collected = Collected()
    library(manifest, collected, "find_record", find).call(FIND, session())

    assert own_attributes(collected, "find_record")["result"] == expected


def test_spans_report_the_pattern_failure_that_the_caller_sees(
    manifest: EffectiveManifest,
) -> None:
    collected = Collected()
    foreign = {**EXTRACTED, "evidence": {"source": {"id": "another"}}}
    pep = library(manifest, collected, "extract_sum", lambda: foreign)

    pep.call(EXTRACT, session())

    result = own_attributes(collected, "extract_sum")["result"]
    assert (result["pdp.outcome"], result["pdp.exceptions"]) == ("failed", ("extraction.foreign_evidence",))
    [(_, runs)] = collected.counts()["tool.error_class_distribution"]
    assert (runs, events(pep)[1]["outcome"]) == (1, "failed")


def test_extraction_spans_have_the_lineage_of_the_model(manifest: EffectiveManifest) -> None:
    """Pattern 1 of the pattern library requires the lineage of the model in the spans of the call and the result."""
    collected = Collected()
    lineage = {"model": "reader", "version": "3", "prompt": "sum-2", "temperature": 0}
    library(manifest, collected, "extract_sum", lambda: {**EXTRACTED, "lineage": lineage}).call(EXTRACT, session())

    spans = own_attributes(collected, "extract_sum")
    stated = {"pdp.lineage.model": "reader", "pdp.lineage.version": "3", "pdp.lineage.prompt": "sum-2"}
    assert spans["dispatch"] == stated
    assert spans["result"] == {"pdp.outcome": "succeeded", **stated}


def test_event_and_span_have_the_snapshot_id_of_a_search(manifest: EffectiveManifest) -> None:
    collected = Collected()
    spans = [{"source": {"id": "guide-1"}}]
    pep = library(manifest, collected, "search_guides", lambda: {"spans": spans, "retrievalSnapshotId": "snap-1"})

    evaluation = pep.call(SEARCH, session())

    assert evaluation.retrieval_snapshot == "snap-1"
    assert [event["retrieval_snapshot"] for event in events(pep)] == [None, "snap-1"]
    assert own_attributes(collected, "search_guides")["result"]["pdp.retrieval_snapshot"] == "snap-1"


@pytest.mark.parametrize(
    ("proposal", "result", "kept"),
    [
        pytest.param(FIND, {}, "p99", id="within the lowest percentile"),
        pytest.param(EXTRACT, EXTRACTED, "exceeded", id="beyond all percentiles"),
        pytest.param(SEARCH, {"spans": [], "retrievalSnapshotId": "snap-1"}, None, id="no sla"),
    ],
)
def test_run_span_names_the_sla_percentile_that_the_duration_met(
    manifest: EffectiveManifest, proposal: dict[str, Any], result: Any, kept: str | None
) -> None:
    collected = Collected()
    tool = proposal["tool"]
    library(manifest, collected, tool, lambda: result).call(proposal, session())

    stated = {} if kept is None else {"pdp.sla": kept}
    assert own_attributes(collected, tool)["run"] == stated
    assert collected.counts()["tool.throughput"] == [({"pdp.tool": tool, "pdp.outcome": "succeeded", **stated}, 1)]


def test_dispatch_span_says_deny_if_a_used_key_turns_an_allow_into_a_denial(base: Pep, works: Desk) -> None:
    collected = Collected()
    pep = Pep(base.manifest, base.engine, tools=works.tools(), telemetry=collected.telemetry)
    for amount in (5, 6):
        pep.call(propose("book_entry", amount=amount), session())

    *_, dispatch = collected.exporter.get_finished_spans()
    assert (dispatch.name, attributes(dispatch)["pdp.verdict"]) == ("tool.book_entry.dispatch", "DENY")
