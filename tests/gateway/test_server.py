"""The gateway lists and calls tools for every combination of client and server revision, over stdio and HTTP."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from mcp.shared import _otel
from opentelemetry import trace

from tests.support.mcp.gateway import World, http_server, shown
from tests.support.scripted import Collected

NEW, OLD = "2026-07-28", "2025-11-25"


@pytest.mark.process
@pytest.mark.parametrize(
    ("mode", "legacy_server", "http"),
    [
        ("auto", False, False), ("auto", True, True), ("legacy", False, True), ("legacy", True, False),
    ],
    ids=["new-new-stdio", "new-old-http", "old-new-http", "old-old-stdio"],
)  # fmt: skip
async def test_gateway_lists_and_calls_tools_in_both_protocol_revisions(
    tmp_path: Path, mode: str, *, legacy_server: bool, http: bool
) -> None:
    with ExitStack() as stack:
        if http:
            stack.enter_context(http_server(tmp_path, "one", legacy=legacy_server))
            world = World(tmp_path)
            world.servers = {"one": {"url": (tmp_path / "one" / "url").read_text()}}
        else:
            world = World(tmp_path, one={"legacy": legacy_server})
        await world.ready()
        async with world.client(mode) as client:
            assert client.protocol_version == (NEW if mode == "auto" else OLD)
            listed = await client.list_tools()
            assert [(each.name, each.description) for each in listed.tools] == [("echo", "echo a text.")]
            assert shown(await client.call_tool("echo", {"text": "hi"})) == (False, ["hi"])
    version = OLD if legacy_server else NEW
    (call,) = world.calls()
    assert (call["version"], call["tool"], call["arguments"]) == (version, "echo", {"text": "hi"})
    assert world.events("type", "verdict", "outcome") == [
        ("tool.echo.dispatch", "ALLOW", None), ("tool.echo.result", None, "succeeded"),
    ]  # fmt: skip


@pytest.mark.process
async def test_spans_of_a_call_are_one_trace_from_the_client_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = Collected()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", collected.provider)
    monkeypatch.setattr(_otel, "_tracer", collected.provider.get_tracer("mcp"))
    world = World(tmp_path, one={})
    await world.ready()
    async with world.client("auto") as client:
        await client.call_tool("echo", {"text": "hi"})

    finished = [span for span in collected.exporter.get_finished_spans() if "echo" in span.name or "guard" in span.name]
    names = {span.context.span_id: span.name for span in finished if span.context}
    assert {span.name: names.get(span.parent.span_id) if span.parent else None for span in finished} == {
        "tools/call echo": None,
        "tool.echo.dispatch": "tools/call echo",
        "run_guardrail pdp": "tool.echo.dispatch",
        "tool.echo.run": "tool.echo.dispatch",
        "MCP send tools/call echo": "tool.echo.run",
        "tool.echo.result": "tool.echo.dispatch",
    }
    assert len({span.context.trace_id for span in finished if span.context}) == 1
    [served] = [dict(span.attributes or {}) for span in finished if span.name == "tools/call echo"]
    assert (served["mcp.method.name"], served["gen_ai.tool.name"]) == ("tools/call", "echo")
