"""The gateway lists and calls tools for every combination of client and server revision, over stdio and HTTP."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.mcp.gateway import World, http_server, shown

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
