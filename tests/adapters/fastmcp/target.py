"""FastMCP as a target: a server of the suite's tools, and its client, of each revision of the protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Self

from anyio.from_thread import start_blocking_portal
from fastmcp import Client, FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool

from pdp import Pep
from pdp.adapters.fastmcp import FastMcpMiddleware
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.local import functions, opened_pep


def server_of(world: World, pep: Pep, **options: Any) -> FastMCP:
    """A server of the suite's tools."""
    beside = [Middleware()] if world.setting == "beside" else []
    options = {"session": World.session, **options}
    server = FastMCP("kit", middleware=[*beside, FastMcpMiddleware(pep, **options), *beside])
    schemas = {name: tool.schema_ for name, tool in pep.manifest.tools.items()}
    for name, function in functions(world).items():
        server.add_tool(Tool.from_function(function).model_copy(update={"parameters": schemas[name]}))

    @server.tool
    def open_shell(command: str) -> str:
        return run_body(world.record, "open_shell", {"command": command})

    return server


async def turn(client: Client, tool: str, arguments: dict[str, Any]) -> Observed:
    """What a model sees of a call."""
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    text = "\n".join(block.text for block in result.content)
    held = re.search(r"approval ([\w-]+)", text)
    return Observed(text, result.is_error, held[1] if held else None)


class FastMcpClient(AdapterClient):
    mode = "auto"
    client: Client

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        with opened_pep(world) as pep, start_blocking_portal() as portal:
            own = cls(world, pep, portal)
            client = Client(server_of(world, pep), mode=cls.mode)
            with portal.wrap_async_context_manager(client) as own.client:
                yield own

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        return await turn(self.client, tool, arguments)

    async def alisted(self) -> Sequence[str]:
        return [tool.name for tool in await self.client.list_tools()]


class LegacyClient(FastMcpClient):
    mode = "legacy"


class FastMcpTarget:
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "In every call over MCP, arguments have names."}

    def __init__(self, revision: str, kind: type[FastMcpClient]) -> None:
        self.name, self.kind = f"FastMCP, MCP {revision}", kind
        self.versions: Mapping[str, str] = {"fastmcp": version("fastmcp")}

    @contextmanager
    def open(self, world: World) -> Iterator[FastMcpClient]:
        with self.kind.opened(world) as client:
            yield client


TARGET = FastMcpTarget("2026-07-28", FastMcpClient)
LEGACY = FastMcpTarget("2025-11-25", LegacyClient)
