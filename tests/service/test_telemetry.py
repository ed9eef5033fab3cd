"""The metrics, log lines and traces that the service writes about requests contain no secrets."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from pdp.service.telemetry import JsonLines
from tests.service.test_health import EVALUATION
from tests.service.test_proposals import SESSION, WIRE
from tests.support.payments import ARGUMENTS
from tests.support.service import service


async def samples(client: Any) -> dict[tuple[str, ...], float]:
    """Return the counters of `/metrics` by name and labels. Durations are left out."""
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith("pdp_") and not sample.name.endswith(("_bucket", "_sum", "_created"))
    }


async def test_metrics_count_requests_by_route_and_decisions_by_verdict(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        client = served.client(["decide", "audit"])
        before = await samples(client)
        await client.post("/access/v1/evaluation", json=EVALUATION)
        await client.get("/v1/approvals/a-name-that-somebody-made-up")
        await client.get("/nowhere/a-name-that-somebody-made-up")
        await client.put("/healthz")
        after = await samples(client)

    grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    stores = {name[1] for name in [*grown] if name[0] == "pdp_store_seconds_count" and grown.pop(name)}
    assert stores >= {"audit", "tokens", "counts"}
    grown.pop(("pdp_sweep_last_success_timestamp_seconds", "default"), None)  # A sweep may have ended meanwhile.
    assert grown == {
        ("pdp_decisions_total", "manifest", "default", "unknown", "DENY"): 1,
        ("pdp_decision_seconds_count", "default"): 1,
        ("pdp_http_requests_total", "/access/v1/evaluation", "200"): 1,
        ("pdp_http_requests_total", "/v1/approvals/{approval_id}", "403"): 1,
        ("pdp_http_requests_total", "none", "404"): 1,
        ("pdp_http_requests_total", "none", "405"): 1,
        ("pdp_http_requests_total", "/metrics", "200"): 1,
        ("pdp_http_request_seconds_count", "/access/v1/evaluation"): 1,
        ("pdp_http_request_seconds_count", "/v1/approvals/{approval_id}"): 1,
        ("pdp_http_request_seconds_count", "none"): 2,
        ("pdp_http_request_seconds_count", "/metrics"): 1,
    }


async def test_metrics_count_proposals_by_verdict(tmp_path: Path) -> None:
    def family(counts: dict[tuple[str, ...], float], *labels: str) -> float:
        return counts.get(("pdp_decisions_total", *labels), 0)

    async with service(tmp_path) as served:
        client = served.client()
        before = await samples(client)
        for arguments in (ARGUMENTS, {}):
            body = {"proposal": {**WIRE, "arguments": arguments}, "session": SESSION}
            assert (await client.post("/v1/proposals", json=body)).status_code == 200
        after = await samples(client)

    labels = [("limits", "default", "initiate_wire", "STEP_UP"), ("none", "default", "initiate_wire", "none")]
    assert [family(after, *each) - family(before, *each) for each in labels] == [1, 1]


async def test_log_line_of_a_request_has_ids_and_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with service(tmp_path) as served:
        token = served.token(["decide"])
        answer = await served.client(token=token).post(
            "/access/v1/evaluation?secret=in-the-query", json=EVALUATION, headers={"X-Request-ID": "the-id"}
        )
        await served.client(token="").get("/healthz", headers={"X-Request-ID": "line\tbreak"})

    lines = [json.loads(JsonLines().format(each)) for each in caplog.records if each.name == "pdp.service.requests"]
    for line in lines:
        assert line.pop("ms") >= 0
        assert line.pop("time").endswith("Z")
    made = lines[1]["request_id"]
    assert answer.headers["x-request-id"] == "the-id"
    assert lines == [
        {
            "level": "info",
            "logger": "pdp.service.requests",
            "message": "POST /access/v1/evaluation 200",
            "request_id": "the-id",
            "tenant": "default",
            "principal": token[4:20],
            "method": "POST",
            "route": "/access/v1/evaluation",
            "status": 200,
        },
        {
            "level": "info",
            "logger": "pdp.service.requests",
            "message": "GET /healthz 200",
            "request_id": made,
            "tenant": None,
            "principal": None,
            "method": "GET",
            "route": "/healthz",
            "status": 200,
        },
    ]
    assert len(made) == 32
    logged = "\n".join(JsonLines().format(record) for record in caplog.records if record.name.startswith("pdp"))
    assert not [secret for secret in (token[20:], "in-the-query", "officer-123") if secret in logged]


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Run an OpenTelemetry collector, and yield its URL and the list of requests that it receives."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()


async def test_spans_of_the_service_continue_the_trace_of_the_caller(tmp_path: Path) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with collector() as (endpoint, received):
        async with service(tmp_path, otlp_endpoint=endpoint) as served:
            client = served.client(["decide"])
            headers = {"traceparent": f"00-{trace}-{parent}-01", "X-Request-ID": "the-id"}
            await client.post("/access/v1/evaluation", json=EVALUATION, headers=headers)

    spans = [
        span
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [
        (
            span.name,
            span.trace_id.hex(),
            span.parent_span_id.hex(),
            {each.key: each.value.string_value or each.value.int_value for each in span.attributes},
        )
        for span in spans
    ] == [
        (
            "POST /access/v1/evaluation",
            trace,
            parent,
            {
                "http.request.method": "POST",
                "http.route": "/access/v1/evaluation",
                "http.response.status_code": 200,
                "pdp.request_id": "the-id",
            },
        )
    ]
