"""The gateway over HTTP accepts only valid callers, and does not forward their tokens to servers."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from pdp.service.security.tokens import issue_token
from pdp.stores.url import OpenStores
from tests.support import PATIENCE, ROOT
from tests.support.mcp.gateway import World, http_server

pytestmark = pytest.mark.process

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
HEADERS = {
    "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
    "Mcp-Name": "echo", "Content-Type": "application/json",
}  # fmt: skip


def token(folder: Path, *scopes: str, tenant: str = "default", **claims: Any) -> str:
    """Issue an access token in the store of the gateway."""
    stores = OpenStores(f"sqlite:///{folder / 'store.db'}", upgrade=True)
    try:
        return issue_token(stores.tokens, tenant, {"name": "client", "scopes": [*scopes], "claims": claims})[1]
    finally:
        stores.close()


@contextmanager
def served(world: World) -> Iterator[str]:
    """Serve a gateway during the `with` block, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (world.folder / "http.yaml").write_text(json.dumps({"port": port}))
    command = [sys.executable, "-m", "pdp", "mcp-gateway", "serve", "-c", str(world.folder / "gateway.yaml")]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
        stack.callback(process.terminate)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def connected(url: str, bearer: str, mode: str) -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {bearer}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield client


async def test_call_is_recorded_for_the_token_holder_and_the_token_is_not_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_SECRET", "Bearer of-the-gateway")
    with http_server(tmp_path, "one"):
        world = World(tmp_path)
        url, secret = (tmp_path / "one" / "url").read_text(), {"Authorization": "UPSTREAM_SECRET"}
        world.servers["one"] = {"url": url, "headers_from_env": secret}
        await world.pin(http="http.yaml")
        world.loosen()
        allowed = token(tmp_path, "propose", sub="ann", scope="mcp.use")
        unscoped = token(tmp_path, "propose", sub="bob")
        with served(world) as url:
            for mode in ("auto", "legacy"):
                async with connected(url, allowed, mode) as client:
                    assert [each.name for each in (await client.list_tools()).tools] == ["echo"]
                    assert not (await client.call_tool("echo", {"text": mode})).is_error
            async with connected(url, unscoped, "auto") as client:
                assert (await client.list_tools()).tools == []
                refused = await client.call_tool("echo", {"text": "hi"})
                assert "POLICY_VIOLATION: DENY: scopes.missing" in str(refused.content[0])
    assert [(call["arguments"], call["authorization"]) for call in world.calls()] == [
        ({"text": "auto"}, "Bearer of-the-gateway"), ({"text": "legacy"}, "Bearer of-the-gateway"),
    ]  # fmt: skip
    assert [row for row in world.events("type", "subject", "verdict") if row[0] == "tool.echo.dispatch"] == [
        ("tool.echo.dispatch", "ann", "ALLOW"), ("tool.echo.dispatch", "ann", "ALLOW"),
        ("tool.echo.dispatch", "bob", "DENY"),
    ]  # fmt: skip


async def test_gateway_does_not_forward_invalid_requests_to_servers(tmp_path: Path) -> None:
    world = World(tmp_path, one={})
    await world.pin(http="http.yaml")
    world.loosen()
    good = {"Authorization": f"Bearer {token(tmp_path, 'propose', sub='ann', scope='mcp.use')}"}
    reader = {"Authorization": f"Bearer {token(tmp_path, 'audit', sub='ann', scope='mcp.use')}"}
    nobody = {"Authorization": f"Bearer {token(tmp_path, 'propose')}"}
    other = token(tmp_path, "propose", tenant="other", sub="ann", scope="mcp.use")
    params = {"name": "echo", "arguments": {"text": "hi"}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with served(world) as url:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:

            async def status(headers: dict[str, str], content: Any = body) -> int:
                answer = await http.post(url, headers=HEADERS | headers, content=json.dumps(content))
                assert "Traceback" not in answer.text
                return answer.status_code

            assert await status({}) == 401
            assert await status({"Authorization": "Bearer pdp_0"}) == 401
            assert await status(nobody) == 401
            assert await status({"Authorization": f"Bearer {other}"}) == 401
            assert await status(reader) == 403
            assert await status(good | {"Mcp-Name": "other"}) == 400
            assert await status(good | {"Mcp-Method": "tools/list"}) == 400
            assert await status(good | {"Host": "elsewhere.example"}) == 421
            assert await status(good | {"Origin": "https://elsewhere.example"}) == 403
            assert await status(good, [body, body]) == 400
            assert await status(good, {**body, "method": "tasks/list"}) in (400, 404)
            assert (await http.post(url, headers=HEADERS | good, content='{"jsonrpc": "2.0", "id')).status_code == 400
            assert world.calls() == []
            assert await status(good) == 200
    assert len(world.calls()) == 1
