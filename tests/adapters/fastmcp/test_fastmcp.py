"""Servers of FastMCP run only calls that the adapter allows."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from fastmcp import Client, Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp.server.auth import StaticTokenVerifier
from fastmcp.server.dependencies import get_access_token
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.tool_injection import ToolInjectionMiddleware
from fastmcp.tools import Tool

from pdp import Pep
from pdp.adapters.fastmcp import FastMcpMiddleware
from pdp.adapters.guard.guard import LEFT_OUT
from pdp.testing.conformance.world import World
from tests.adapters.client import grant
from tests.adapters.fastmcp.target import LEGACY, call
from tests.conformance.page import outcome

BILL = {"payee": "a", "amount": 500.0}


@pytest.fixture
def server(pep: Pep, ran: list[Any]) -> FastMCP:
    return tools(FastMCP("kit", middleware=[FastMcpMiddleware(pep, World.session)]), ran)


def tools(server: FastMCP, ran: list[Any]) -> FastMCP:
    @server.tool
    def pay_bill(payee: str, amount: float) -> str:
        ran.append((payee, amount))
        return "paid"

    @server.tool
    def wipe_disk(disk: str) -> str:
        ran.append(disk)
        return "wiped"

    return server


@pytest.mark.process
def test_conformance_suite_passes_with_a_client_of_the_older_mcp_revision(tmp_path: Path) -> None:
    cells = outcome(LEGACY, tmp_path)

    assert {case for case, cell in cells.items() if cell != "pass"} == {"positional arguments"}


@asynccontextmanager
async def served(server: FastMCP, token: str) -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error"))
        serving = asyncio.create_task(http.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        async with Client(StreamableHttpTransport(url, auth=token)) as client:
            yield client
        http.should_exit = True
        await serving


@pytest.mark.parametrize(("token", "agent"), [("main", "agent:kit"), ("sub", "agent:sub"), ("nobody", None)])
async def test_session_of_a_call_over_http_has_the_caller_in_the_token(
    pep: Pep, ran: list[Any], token: str, agent: str | None
) -> None:
    def session(context: Context) -> dict[str, Any]:
        verified = get_access_token()
        claims = verified.claims if verified else {}
        return {"claims": claims, "agent": claims["act"]["sub"]}

    claims = World.session["claims"]
    tokens = {
        "main": {"client_id": "c", **claims},
        "sub": {"client_id": "c", **claims, "act": {"sub": "agent:sub", "scopes": ["kit.use"]}},
        "nobody": {"client_id": "c", "sub": "person-9"},
    }
    guard = FastMcpMiddleware(pep, session)
    server = tools(FastMCP("kit", middleware=[guard], auth=StaticTokenVerifier(tokens)), ran)
    async with served(server, token) as client:
        listed = [tool.name for tool in await client.list_tools()]
        held = await call(client, "pay_bill", BILL)

    assert listed == ([] if agent is None else ["pay_bill"])
    assert (held.is_error, ran, held.held is None) == (True, [], agent is None)
    if agent is not None:
        assert pep.approvals is not None
        assert pep.approvals.get(held.held or "").agent == agent


async def test_client_gets_progress_while_a_call_runs(server: FastMCP) -> None:
    @server.tool
    async def post_note(note: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        return note

    seen: list[Any] = []

    async def progress(*said: Any) -> None:
        seen.append(said)

    async with Client(server) as client:
        result = await client.call_tool("post_note", {"note": "a"}, progress_handler=progress)

    assert (seen, result.data) == ([(1.0, 2.0, "half")], "a")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("grants", [False, True], ids=["accepted", "granted"])
async def test_accepting_an_approval_page_does_not_grant_the_call(
    pep: Pep, ran: list[Any], mode: str, grants: bool
) -> None:
    opened: list[str] = []

    async def open_page(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult:
        opened.append(params.url)
        if grants:
            grant(pep, params.url.removeprefix("https://pages/"))
        return ElicitResult(action="accept")

    guard = FastMcpMiddleware(pep, World.session, page="https://pages/")
    async with Client(
        tools(FastMCP("kit", middleware=[guard]), ran), elicitation_handler=open_page, mode=mode
    ) as client:
        seen = await call(client, "pay_bill", BILL)

    assert pep.approvals is not None
    # A server cannot ask clients of the older revision during a call, so the result names the URL of the page.
    sent_there = mode == "auto"
    paid = sent_there and grants
    assert (seen.is_error, ran) == (not paid, [("a", 500.0)] if paid else [])
    assert opened == ([f"https://pages/{pep.approvals.list()[0].id}"] if sent_there else [])
    assert paid or f"Approve it at https://pages/{seen.held}" in seen.message


def mounted(server: FastMCP, guard: FastMcpMiddleware, ran: list[Any]) -> str:
    server.mount(tools(FastMCP("child"), ran), namespace="child")
    return "child_wipe_disk"


def renamed(server: FastMCP, guard: FastMcpMiddleware, ran: list[Any]) -> str:
    def body(disk: str) -> str:
        ran.append(disk)
        return "wiped"

    server.add_tool(Tool.from_tool(Tool.from_function(body, name="wipe_disk"), name="tidy"))
    return "tidy"


def injected(server: FastMCP, guard: FastMcpMiddleware, ran: list[Any]) -> str:
    def body(disk: str) -> None:
        ran.append(disk)

    server.add_middleware(ToolInjectionMiddleware([Tool.from_function(body, name="wipe_disk")]))
    return "wipe_disk"


def called_by_another(server: FastMCP, guard: FastMcpMiddleware, ran: list[Any]) -> str:
    @server.tool
    async def post_note(note: str) -> str:
        return str(await server.call_tool("wipe_disk", {"disk": note}))

    return "post_note"


def guarded_child(server: FastMCP, guard: FastMcpMiddleware, ran: list[Any]) -> str:
    server.middleware.remove(guard)
    server.mount(tools(FastMCP("child", middleware=[guard]), ran), namespace="child")
    return "child_wipe_disk"


@pytest.mark.parametrize("arranged", [mounted, renamed, injected, called_by_another, guarded_child])
async def test_denied_tool_cannot_be_called_through_another_tool_or_request(
    server: FastMCP, ran: list[Any], arranged: Any
) -> None:
    guard = next(each for each in server.middleware if isinstance(each, FastMcpMiddleware))
    name = arranged(server, guard, ran)

    async with Client(server) as client:
        arguments = {"note": "a"} if name == "post_note" else {"disk": "a"}
        seen = await call(client, name, arguments)
        listed = [tool.name for tool in await client.list_tools()]

    assert (seen.is_error or "is_error=True" in seen.message, ran) == (True, [])
    assert arranged is guarded_child or name not in listed or name == "post_note"


async def test_server_does_not_call_an_older_version_of_a_tool(server: FastMCP, ran: list[Any]) -> None:
    def post_note(note: str) -> None:
        ran.append(note)

    for version in ("1.0", "2.0"):
        server.add_tool(Tool.from_function(post_note, version=version))
    async with Client(server) as client:
        old = await client.call_tool("post_note", {"note": "old"}, version="1.0", raise_on_error=False)
        await client.call_tool("post_note", {"note": "new"})

    assert (old.is_error, ran) == (True, ["new"])


async def test_server_does_not_list_a_tool_that_differs_from_the_manifest(
    server: FastMCP, ran: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    @server.tool
    def post_note(note: int, loud: bool) -> None:
        ran.append(note)

    async with Client(server) as client:
        listed = [tool.name for tool in await client.list_tools()]
        seen = [await call(client, "post_note", {"note": "a"}) for _ in range(2)]

    assert (listed, [each.message for each in seen], ran) == (["pay_bill"], [LEFT_OUT.text] * 2, [])
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pdp.adapters"]
    assert line.startswith("tool post_note is left out: the tool differs from manifest 1.0.0: ")


async def test_server_does_not_list_a_tool_that_can_run_as_a_task(server: FastMCP, ran: list[Any]) -> None:
    async def post_note(note: str) -> None:
        ran.append(note)

    server.add_tool(Tool.from_function(post_note, task=True))

    result = await server.call_tool("post_note", {"note": "a"})

    assert (result.is_error, ran) == (True, [])


async def test_tool_that_replaces_another_tool_is_compared_with_the_manifest_again(
    server: FastMCP, ran: list[Any]
) -> None:
    def read_note(note: str, page: float = 3, filter: Any = None) -> str:  # noqa: A002 - the tool's argument
        ran.append((note, page))
        return note

    def with_secret(note: str, secret: bool = True) -> str:
        ran.append(("replaced", note))
        return note

    server.add_tool(Tool.from_function(read_note))
    async with Client(server) as client:
        first = await call(client, "read_note", {"note": "a"})
        server.local_provider.remove_tool("read_note")
        server.add_tool(Tool.from_function(with_secret, name="read_note"))
        second = await call(client, "read_note", {"note": "a"})

    assert (first.is_error, second.is_error, ran) == (False, True, [("a", 3)])


class Changes(Middleware):
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        message = context.message.model_copy(update={"arguments": {"note": "changed"}})
        await call_next(context.copy(message=message))
        return await call_next(context)


class Extends(ServerExtension):
    identifier = "org.example/twice"

    async def intercept_tool_call(self, *_: Any, **__: Any) -> Any:
        raise AssertionError


def _within(server: FastMCP, child: FastMCP) -> None:
    server.add_middleware(Changes())


def _within_child(server: FastMCP, child: FastMCP) -> None:
    child.add_middleware(Changes())


def _extended(server: FastMCP, child: FastMCP) -> None:
    server.add_extension(Extends())


@pytest.mark.parametrize("arranged", [_within, _within_child, _extended])
async def test_guard_rejects_middleware_that_runs_between_the_guard_and_the_tool(
    server: FastMCP, ran: list[Any], arranged: Any
) -> None:
    child = FastMCP("child")

    @child.tool
    def post_note(note: str) -> str:
        ran.append(note)
        return note

    server.mount(child)
    arranged(server, child)
    async with Client(server) as client:
        seen = await call(client, "post_note", {"note": "a"})

    assert (seen.message, ran) == (LEFT_OUT.text, [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no such note in /srv/notes"), "TOOL_EXECUTION_FAILED: no such note in <path>"),
        (ValueError("host db-7 is down"), "TOOL_EXECUTION_FAILED: Error calling tool 'post_note'"),
    ],
    ids=["told", "masked"],
)
async def test_client_gets_the_error_of_a_tool(pep: Pep, error: Exception, text: str) -> None:
    server = FastMCP("kit", middleware=[FastMcpMiddleware(pep, World.session)], mask_error_details=True)

    @server.tool
    def post_note(note: str) -> str:
        raise error

    async with Client(server) as client:
        seen = await call(client, "post_note", {"note": "a"})

    assert (seen.is_error, seen.message) == (True, text)


async def test_tool_can_ask_its_client_for_input(server: FastMCP, pep: Pep) -> None:
    form = types.ElicitRequestFormParams(message="sure?", requested_schema={"type": "object", "properties": {}})

    @server.tool
    async def post_note(note: str, ctx: Context) -> Any:
        if not ctx.input_responses:
            return types.InputRequiredResult(input_requests={"sure": types.ElicitRequest(params=form)})
        return note

    async def answer(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    async with Client(server, elicitation_handler=answer) as client:
        seen = await call(client, "post_note", {"note": "a"})

    assert (seen.is_error, seen.message) == (False, "a")
