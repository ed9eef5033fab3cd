"""Servers of the MCP SDK run only calls that the adapter allows."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from mcp.client.client import Client, ConnectMode
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from pdp import Approvals, Pep
from pdp.adapters.guard.guard import LEFT_OUT
from pdp.adapters.mcp import McpMiddleware
from pdp.testing.conformance.world import World
from tests.adapters.client import grant
from tests.adapters.mcp.target import LEGACY, call
from tests.conformance.page import outcome

BILL = {"payee": "a", "amount": 500.0}


@pytest.fixture
def server(pep: Pep, ran: list[Any]) -> MCPServer:
    return tools(MCPServer("kit", middleware=[McpMiddleware(pep, World.session)]), ran)


def tools(server: MCPServer, ran: list[Any]) -> MCPServer:
    def pay_bill(payee: str, amount: float) -> str:
        ran.append((payee, amount))
        return "paid"

    def wipe_disk(disk: str) -> str:
        ran.append(disk)
        return "wiped"

    server.add_tool(pay_bill)
    server.add_tool(wipe_disk)
    return server


@pytest.mark.process
def test_conformance_suite_passes_with_a_client_of_the_older_mcp_revision(tmp_path: Path) -> None:
    cells = outcome(LEGACY, tmp_path)

    assert {case for case, cell in cells.items() if cell != "pass"} == {"positional arguments"}


CLAIMS = {
    "main": World.session["claims"],
    "sub": {**World.session["claims"], "act": {"sub": "agent:sub", "scopes": ["kit.use"]}},
    "nobody": {"sub": "person-9"},
}


class Tokens:
    async def verify_token(self, token: str) -> AccessToken | None:
        claims = CLAIMS.get(token)
        return claims and AccessToken(token=token, client_id="c", scopes=[], subject=claims["sub"], claims=claims)


@asynccontextmanager
async def served(middleware: McpMiddleware, ran: list[Any], token: str, mode: ConnectMode) -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        auth = AuthSettings(issuer_url=AnyHttpUrl(url), resource_server_url=None)
        server = tools(MCPServer("kit", middleware=[middleware], auth=auth, token_verifier=Tokens()), ran)
        http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        async with (
            create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as own,
            Client(streamable_http_client(f"{url}/mcp", http_client=own), mode=mode, cache=None) as client,
        ):
            yield client
        http.should_exit = True
        await serving


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("token", "agent"), [("main", "agent:kit"), ("sub", "agent:sub"), ("nobody", None)])
async def test_session_of_a_call_over_http_has_the_caller_in_the_token(
    pep: Pep, ran: list[Any], token: str, agent: str | None, mode: ConnectMode
) -> None:
    def session(context: Any) -> dict[str, Any]:
        verified = get_access_token()
        claims = (verified and verified.claims) or {}
        return {"claims": claims, "agent": claims["act"]["sub"]}

    async with served(McpMiddleware(pep, session), ran, token, mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        held = await call(client, "pay_bill", BILL)

    assert listed == ([] if agent is None else ["pay_bill"])
    assert (held.is_error, ran, held.held is None) == (True, [], agent is None)
    if agent is not None:
        assert pep.approvals is not None
        assert pep.approvals.get(held.held or "").agent == agent


async def test_client_gets_progress_while_a_call_runs(server: MCPServer) -> None:
    async def post_note(note: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        return note

    server.add_tool(post_note)
    seen: list[Any] = []

    async def said(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with Client(server) as client:
        result = await client.call_tool("post_note", {"note": "a"}, progress_callback=said)

    assert (seen, result.structured_content) == ([(1.0, 2.0, "half")], {"result": "a"})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("grants", "page"), [(False, "https://pages/"), (True, None)], ids=["accepted", "granted"])
async def test_accepting_an_approval_page_does_not_grant_the_call(
    pep: Pep, ran: list[Any], mode: ConnectMode, grants: bool, page: str | None
) -> None:
    pages, opened = page or "https://pdp.example/console/approvals/", list[str]()
    pep = pep if page else pep.with_changes(approvals=Approvals(public_url="https://pdp.example"))

    async def open_page(context: Any, params: Any) -> types.ElicitResult:
        opened.append(params.url)
        if grants:
            grant(pep, params.url.removeprefix(pages))
        return types.ElicitResult(action="accept")

    server = MCPServer("kit", middleware=[McpMiddleware(pep, World.session, page=page)])
    async with Client(tools(server, ran), elicitation_callback=open_page, mode=mode) as client:
        seen = await call(client, "pay_bill", BILL)

    assert pep.approvals is not None
    # A server cannot ask clients of the older revision during a call, so the result names the URL of the page.
    sent_there = mode == "auto"
    paid = sent_there and grants
    assert (seen.is_error, ran) == (not paid, [("a", 500.0)] if paid else [])
    assert opened == ([f"{pages}{pep.approvals.list()[0].id}"] if sent_there else [])
    assert paid or f"{pages}{seen.held}" in seen.message


async def test_lowlevel_server_with_a_paginated_list_is_guarded(pep: Pep, ran: list[Any]) -> None:
    pages = {None: ("read_note", "b"), "b": ("wipe_disk", "c"), "c": ("post_note", None)}

    async def listed(ctx: Any, params: Any) -> types.ListToolsResult:
        name, cursor = pages[params.cursor if params else None]
        tool = types.Tool(name=name, input_schema=pep.manifest.tools[name].schema_)
        return types.ListToolsResult(tools=[tool], next_cursor=cursor)

    async def called(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        ran.append((params.name, params.arguments))
        return types.CallToolResult(content=[types.TextContent(text="done")])

    server: Server[Any] = Server("kit", on_list_tools=listed, on_call_tool=called)
    server.middleware.append(McpMiddleware(pep, World.session))
    async with Client(server) as client:
        seen = [await call(client, name, arguments) for name, arguments in (
            ("post_note", {"note": "a"}), ("wipe_disk", {"disk": "a"}), ("read_note", {"note": "b"}),
        )]  # fmt: skip
        unlisted = await call(client, "pay_bill", BILL)

    assert ([each.is_error for each in seen], unlisted.message) == ([False, True, False], LEFT_OUT.text)
    assert ran == [("post_note", {"note": "a"}), ("read_note", {"note": "b"})]


@pytest.mark.parametrize(
    "params", [{"name": 1}, {"name": "post_note", "arguments": [1]}, {}], ids=["name", "list", "none"]
)
async def test_malformed_mcp_request_gets_an_error(pep: Pep, server: MCPServer, params: Any, ran: list[Any]) -> None:
    request = types.Request[dict[str, Any], str](method="tools/call", params=params)
    async with Client(server, mode="legacy") as client:
        with pytest.raises(MCPError) as caught:
            await client.session.send_request(request, types.CallToolResult)

    assert (caught.value.error.code, ran) == (types.INVALID_PARAMS, [])


async def test_call_from_one_tool_of_a_server_to_another_is_not_decided(server: MCPServer, ran: list[Any]) -> None:
    async def post_note(note: str) -> str:
        return str(await server.call_tool("wipe_disk", {"disk": note}))

    server.add_tool(post_note)
    async with Client(server) as client:
        await call(client, "post_note", {"note": "a"})

    assert ran == ["a"]  # MCPServer.call_tool sends no protocol message, so the middleware does not see this call.


async def test_server_does_not_list_a_tool_that_differs_from_the_manifest(server: MCPServer, ran: list[Any]) -> None:
    def post_note(note: int, loud: bool) -> None:
        ran.append(note)

    server.add_tool(post_note)
    async with Client(server) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        seen = await call(client, "post_note", {"note": "a"})

    assert (listed, seen.message, ran) == (["pay_bill"], LEFT_OUT.text, [])


async def test_tool_that_replaces_another_tool_is_compared_with_the_manifest_again(
    server: MCPServer, ran: list[Any]
) -> None:
    def post_note(note: str) -> str:
        ran.append(note)
        return note

    def with_secret(note: str, secret: bool = True) -> str:
        raise AssertionError(note)

    server.add_tool(post_note)
    async with Client(server) as client:
        first = await call(client, "post_note", {"note": "a"})
        server.remove_tool("post_note")
        server.add_tool(with_secret, name="post_note")
        second = await call(client, "post_note", {"note": "a"})

    assert (first.is_error, second.message, ran) == (False, LEFT_OUT.text, ["a"])


async def test_guard_rejects_middleware_that_runs_between_the_guard_and_the_server(pep: Pep, ran: list[Any]) -> None:
    async def changes(ctx: Any, call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        return await call_next(replace(ctx, params={**ctx.params, "arguments": {"payee": "b", "amount": 9}}))

    server = tools(MCPServer("kit", middleware=[McpMiddleware(pep, World.session), changes]), ran)
    async with Client(server) as client:
        seen = await call(client, "pay_bill", BILL)

    assert (seen.message, ran) == (LEFT_OUT.text, [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ToolError("no such note in /srv/notes"),
            "TOOL_EXECUTION_FAILED: Error executing tool post_note: no such note in <path>",
        ),
        (ValueError("host db-7 is down"), "TOOL_EXECUTION_FAILED: Error executing tool post_note"),
    ],
    ids=["told", "masked"],
)
async def test_client_gets_the_error_of_a_tool(server: MCPServer, error: Exception, text: str) -> None:
    def post_note(note: str) -> str:
        raise error

    server.add_tool(post_note)
    async with Client(server) as client:
        seen = await call(client, "post_note", {"note": "a"})

    assert (seen.is_error, seen.message) == (True, text)


async def test_client_gets_a_protocol_error_of_the_server_unchanged(server: MCPServer) -> None:
    def post_note(note: str) -> str:
        raise MCPError(409, note)

    server.add_tool(post_note)
    async with Client(server) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("post_note", {"note": "busy"})

    assert (caught.value.error.code, caught.value.error.message) == (409, "busy")


async def test_tool_can_ask_its_client_for_input(server: MCPServer) -> None:
    form = types.ElicitRequestFormParams(message="sure?", requested_schema={"type": "object", "properties": {}})

    async def post_note(note: str, ctx: Context) -> Any:
        if not ctx.input_responses:
            return types.InputRequiredResult(input_requests={"sure": types.ElicitRequest(params=form)})
        return note

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={})

    server.add_tool(post_note)
    async with Client(server, elicitation_callback=answer) as client:
        seen = await call(client, "post_note", {"note": "a"})

    assert (seen.is_error, seen.message) == (False, "a")
