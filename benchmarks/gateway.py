"""What the MCP gateway adds to a call, as a ratio within one run: `python -m benchmarks.gateway`, `--quick` for a look.

It is compared with a proxy that passes every call on, written with the same SDK and served in the same way. Both run as
processes before the same server over stdio, and are asked in turns by one client each, over stdio and over HTTP. The
gateway decides each call by the released baseline, checks its arguments, and records attempt and outcome in SQLite.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared._httpx_utils import create_mcp_http_client

from pdp.service.security.tokens import issue_token
from pdp.stores.url import OpenStores
from tests.support import ROOT
from tests.support.mcp.gateway import SERVER, World

BOUND: Final = 1.5
_TURNS: Final = 20
_TEXT: Final = {"text": "some words that are said again"}


async def pass_through(folder: str, port: int | None) -> None:
    """Serve what the server in a folder has, and do nothing else."""
    command = StdioServerParameters(command=sys.executable, args=[str(SERVER), folder], env=dict(os.environ))
    async with Client(command, cache=None) as upstream:

        async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
            return await upstream.list_tools()

        async def call_tool(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            return await upstream.call_tool(params.name, params.arguments)

        server: Server[Any] = Server("proxy", on_list_tools=list_tools, on_call_tool=call_tool)
        if port is None:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            config = uvicorn.Config(server.streamable_http_app(), port=port, log_level="error", loop="uvloop")
            await uvicorn.Server(config).serve()


async def measured(clients: Sequence[Client], rounds: int) -> list[float]:
    """Return the seconds of a call of each client, asked in turns: those that nine of ten calls take longer than.

    What else the machine does, which makes a call take many times as long, is in the rest of them.
    """
    times: list[list[float]] = [[] for _ in clients]
    for number in range(rounds):
        for client, seconds in zip(clients, times, strict=True):
            for _ in range(_TURNS):
                start = time.perf_counter()
                result = await client.call_tool("echo", _TEXT)
                seconds.append(time.perf_counter() - start)
                if result.is_error:
                    raise RuntimeError(result.content)
            if number == 0:
                seconds.clear()
    return [statistics.quantiles(seconds, n=10)[0] for seconds in times]


def started(arguments: Sequence[object], stack: AsyncExitStack) -> None:
    """Start a program of this benchmark, ended with `stack`."""
    process = subprocess.Popen([sys.executable, "-m", *map(str, arguments)], cwd=ROOT)
    stack.callback(process.wait)
    stack.callback(process.terminate)


async def reached(port: int, token: str, stack: AsyncExitStack) -> Client:
    """Return a client of what is served at a port, as soon as it is."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            break
    http = await stack.enter_async_context(create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}))
    transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
    return await stack.enter_async_context(Client(transport, cache=None))


async def compared(folder: Path, rounds: int, first_port: int) -> dict[str, list[float]]:
    """Return for each transport the seconds of a call through the proxy and through the gateway."""
    world = World(folder, one={})
    await world.pin(http="http.yaml")
    world.loosen()
    (folder / "http.yaml").write_text(json.dumps({"port": first_port + 1}))
    stores = OpenStores(f"sqlite:///{folder / 'store.db'}", upgrade=True)
    claims = {"sub": "someone", "scope": "mcp.use"}
    _, token = issue_token(stores.tokens, "default", {"name": "client", "scopes": ["propose"], "claims": claims})
    stores.close()
    over_http = folder / "gateway.yaml"
    over_stdio = folder / "stdio.yaml"
    over_stdio.write_text(json.dumps({**json.loads(over_http.read_text()), "http": None}))
    proxy = ["benchmarks.gateway", "--proxy", folder / "one"]
    results = {}
    async with AsyncExitStack() as stack:
        clients = []
        for arguments in (proxy, ["pdp", "mcp-gateway", "serve", "-c", over_stdio]):
            program = StdioServerParameters(
                command=sys.executable, args=["-m", *map(str, arguments)], env=dict(os.environ), cwd=ROOT
            )
            clients.append(await stack.enter_async_context(Client(program, cache=None)))
        results["stdio"] = await measured(clients, rounds)
    async with AsyncExitStack() as stack:
        started([*proxy, "--port", first_port], stack)
        started(["pdp", "mcp-gateway", "serve", "-c", over_http], stack)
        clients = [await reached(port, token, stack) for port in (first_port, first_port + 1)]
        results["streamable HTTP"] = await measured(clients, rounds)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--proxy", metavar="FOLDER", help="be the proxy before the server of a folder")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.proxy:
        asyncio.run(pass_through(options.proxy, options.port))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(compared(Path(folder), 10 if options.quick else 50, options.port or 18380))
    for transport, (plain, gateway) in results.items():
        ratio = gateway / plain
        print(
            f"{transport}: {plain * 1000:.2f} ms, gateway {gateway * 1000:.2f} ms, {ratio:.2f} times (at most {BOUND})"
        )
    sys.exit(any(gateway > BOUND * plain for plain, gateway in results.values()))


if __name__ == "__main__":
    main()
