"""The gateway lists the tools of public servers, from recordings and also from live servers that are installed."""

import json
import os
import shutil
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from pdp.errors import UsageError
from pdp.gateway.config import read_gateway
from pdp.gateway.pins import declarations, readings
from pdp.gateway.upstream import Upstream
from tests.support.command_line import pdp
from tests.support.mcp.gateway import World, tool

pytestmark = pytest.mark.process

RECORDED = Path(__file__).with_name("recorded")
SERVERS = sorted(path.stem for path in RECORDED.glob("*.json"))
# The fields of a tool that the gateway shows. `execution` is left out, because the gateway does not run tasks.
SHOWN = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
LOOK_AHEAD = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?!x)a$"}}}


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return content


async def shown(world: World) -> list[dict[str, Any]]:
    """Return the tools that the gateway lists, sorted by name."""
    async with world.client() as client:
        listed = [each.model_dump(by_alias=True, exclude_none=True) for each in (await client.list_tools()).tools]
    return [{key: each[key] for key in SHOWN if key in each} for each in listed]


@pytest.mark.parametrize("name", SERVERS)
async def test_gateway_lists_tools_of_public_servers_as_declared(tmp_path: Path, name: str) -> None:
    tools = recorded(name)["tools"]
    world = World(tmp_path, one={"tools": tools})

    assert (await world.pin())[1] == []
    declared = sorted(tools, key=itemgetter("name"))
    assert await shown(world) == [{key: each[key] for key in SHOWN if key in each} for each in declared]
    done = pdp("manifest", "import", "mcp", str(RECORDED / f"{name}.json"), "--json")
    assert (done.code, done.json["tools"]) == (0, [each["name"] for each in tools])


def command(name: str, folder: Path) -> list[str]:
    """Return the command that starts the server. Skip the test if the server's recorded version is not installed."""
    if not (installed := os.environ.get("PDP_MCP_SERVERS")):
        pytest.skip("PDP_MCP_SERVERS is not set: no servers are installed")
    stated, home = recorded(name), Path(installed)
    package, version = stated["package"], stated["version"]
    if stated["registry"] == "npm":
        file = home / "node_modules" / package / "package.json"
        is_there = shutil.which("node") and file.exists() and json.loads(file.read_text())["version"] == version
        program = home / "node_modules" / ".bin" / f"mcp-server-{name}"
    else:
        is_there = [*home.glob(f"venv/lib/*/site-packages/{package.replace('-', '_')}-{version}.dist-info")]
        program = home / "venv" / "bin" / f"mcp-server-{name}"
    if not is_there:
        pytest.skip(f"{package} {version}, or Node, is not installed in {installed}")
    return [str(program), *([str(folder)] if name == "filesystem" else [])]


@pytest.mark.parametrize("name", SERVERS)
async def test_gateway_lists_the_tools_of_a_live_server_as_recorded(tmp_path: Path, name: str) -> None:
    """The variable PDP_MCP_SERVERS contains the path of the folder with the installed servers (see CONTRIBUTING.md)."""
    world = World(tmp_path)
    world.servers["one"] = {"command": command(name, tmp_path)}
    assert (await world.pin())[1] == []
    upstream = Upstream("one", read_gateway(tmp_path / "gateway.yaml").servers["one"], 60)
    try:
        direct = [*declarations(await upstream.listed("tools")).values()]
    finally:
        await upstream.close()

    assert await shown(world) == sorted(direct, key=itemgetter("name"))
    assert [each["name"] for each in direct] == [each["name"] for each in recorded(name)["tools"]]


async def test_pin_leaves_out_unreadable_tools_and_reports_dropped_schema_keywords(tmp_path: Path) -> None:
    loose = {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "markdownDescription": "*n*",
        "properties": {
            "n": {"type": "integer", "format": "int32"}, "m": {"type": "integer", "format": "int32"},
            "x": {**LOOK_AHEAD["properties"]["x"], "maxLength": 9},  # type: ignore[index]
            "open": {"type": "object", "additionalProperties": True},
        },
    }  # fmt: skip
    world = World(tmp_path, one={"tools": [tool(inputSchema=loose), tool("ahead", inputSchema=LOOK_AHEAD)]})

    (left_out,) = (await world.pin())[1]
    assert left_out == (
        "one: tool ahead is left out: the pattern `^(?!x)a$` cannot be checked in linear time; ask the author "
        "of the tool to correct the tool: remove look-around, or add `maxLength`, `enum` or `const`"
    )
    pins = json.loads((tmp_path / "pins.json").read_text())
    assert readings(pins) == [f"one: {note}: echo" for note in (
        "read as draft-07", "dropped: `markdownDescription`", "dropped: `format int32`", "dropped: `pattern ^(?!x)a$`",
    )]  # fmt: skip
    assert [each["inputSchema"] for each in await shown(world)] == [loose]


async def test_server_without_any_usable_tool_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, one={"tools": [tool("ahead", inputSchema=LOOK_AHEAD)]})
    with pytest.raises(UsageError, match="one: none of its 1 tools can be pinned"):
        await world.pin()

    world.state("one", tools=[tool()])
    await world.pin()
    world.state("one", tools=[tool(description="Another.")])
    async with world.client() as client:
        with pytest.raises(MCPError, match="server one has 1 tools, but none can be used"):
            await client.list_tools()
