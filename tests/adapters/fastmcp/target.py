"""The conformance target for FastMCP, in each protocol revision: a server with the suite's tools, and a client."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from fastmcp import Client, FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool

from pdp import Pep
from pdp.adapters.fastmcp import FastMcpMiddleware
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions


def server_of(world: Any, pep: Pep) -> FastMCP:
    beside = [Middleware()] if world.setting == "beside" else []
    server = FastMCP("kit", middleware=[*beside, FastMcpMiddleware(pep, World.session), *beside])
    schemas = {name: tool.schema_ for name, tool in pep.manifest.tools.items()}
    for name, function in functions(world).items():
        server.add_tool(Tool.from_function(function).model_copy(update={"parameters": schemas[name]}))

    server.tool(shell(world))
    return server


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> Observed:
    """Call a tool and return the text that a model would see."""
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
        with super().opened(world) as own:
            client = Client(server_of(world, own.pep), mode=cls.mode)
            with own.portal.wrap_async_context_manager(client) as own.client:
                yield own

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        return await call(self.client, tool, arguments)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        super().cancel(tool, arguments, call_id=call_id)
        # The server answers this request without the engine, so the answer shows that the server has read the earlier
        # requests.
        self.portal.call(self.turn, "open_shell", {}, "")

    async def alisted(self) -> Sequence[str]:
        return [tool.name for tool in await self.client.list_tools()]


class LegacyClient(FastMcpClient):
    mode = "legacy"


TARGET = AdapterTarget("FastMCP", FastMcpClient, "fastmcp", why="In every call over MCP, arguments have names.")
LEGACY = AdapterTarget(
    "FastMCP, MCP 2025-11-25", LegacyClient, "fastmcp", why="In every call over MCP, arguments have names."
)
