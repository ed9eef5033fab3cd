"""The conformance target for the MCP SDK, in each protocol revision: a server with the suite's tools, and a client."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from mcp.client.client import Client, ConnectMode
from mcp.server.mcpserver import MCPServer
from typing_extensions import TypedDict

from pdp import Pep
from pdp.adapters.mcp import McpMiddleware
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions


class Range(TypedDict, total=False):
    to: float


class Filter(TypedDict, total=False):
    tags: list[str]
    range: Range


async def let_pass(ctx: Any, call_next: Any) -> Any:
    """Middleware of the server that lets every message pass."""
    return await call_next(ctx)


def server_of(world: Any, pep: Pep) -> MCPServer:
    beside = [let_pass] if world.setting == "beside" else []
    server = MCPServer("kit", middleware=[*beside, McpMiddleware(pep, World.session)], log_level="CRITICAL")
    bodies = functions(world)

    def read_note(note: str, page: float | None = None, filter: Filter | None = None) -> str:  # noqa: A002 - an argument
        found: str = bodies["read_note"](note=note, page=page, filter=filter)
        return found

    for function in (*({**bodies, "read_note": read_note}).values(), shell(world)):
        server.add_tool(function)
    return server


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> Observed:
    """Call a tool and return the text that a model would see."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if block.type == "text")
    held = re.search(r"approval ([\w-]+)", text)
    return Observed(text, bool(result.is_error), held[1] if held else None)


class McpClient(AdapterClient):
    mode: ConnectMode = "auto"
    client: Client

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        with super().opened(world) as own:
            client = Client(server_of(world, own.pep), mode=cls.mode, cache=None)
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
        return [tool.name for tool in (await self.client.list_tools()).tools]


class LegacyClient(McpClient):
    mode = "legacy"


TARGET = AdapterTarget("MCP SDK", McpClient, "mcp", why="In every call over MCP, arguments have names.")
LEGACY = AdapterTarget(
    "MCP SDK, MCP 2025-11-25", LegacyClient, "mcp", why="In every call over MCP, arguments have names."
)
