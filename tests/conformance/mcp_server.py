"""An MCP server over stdio that offers the suite's tools: `mcp_server.py MANIFEST RECORD`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from pdp.testing.conformance.world import run_body

UNDECLARED = {"name": "open_shell", "schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
# The client adds this prefix to the tool names of the server `kit`, so manifests for hooks have the prefix, too.
SPELLING = "mcp__kit__"
TOOLS = [*json.loads(Path(sys.argv[1]).read_text())["tools"], UNDECLARED]


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    named = ((tool["name"].removeprefix(SPELLING), tool["schema"]) for tool in TOOLS)
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schema) for name, schema in named])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    try:
        text = run_body(Path(sys.argv[2]), params.name, params.arguments or {})
    except RuntimeError as error:
        return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def serve() -> None:
    server: Server[Any] = Server("kit", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve())
