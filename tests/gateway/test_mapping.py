"""Every MCP method of both revisions is mapped to a decision. Resources and prompts can be held, as tool calls can."""

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types.methods import SPEC_CLIENT_METHODS

from pdp.gateway.methods import DECIDED, FILTERED, OF_TASKS, PASSED
from tests.support.mcp.gateway import BOTH, World
from tests.support.mcp.waiting import AGENT, Desk, over_http, over_stdio


def test_every_mcp_method_is_mapped_once() -> None:
    refused = ["completion/complete", "resources/subscribe", "resources/unsubscribe"]
    lines = [*DECIDED, *FILTERED, *OF_TASKS, *PASSED, *refused]
    assert len(set(lines)) == len(lines)
    assert set(lines) - set(SPEC_CLIENT_METHODS) == {*OF_TASKS, "notifications/initialized"}
    assert set(SPEC_CLIENT_METHODS) - set(lines) == set()


@pytest.mark.process
@BOTH
async def test_mcp_resources_and_prompts_are_mapped_as_in_the_authzen_profile(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, one={})
    desk = Desk(world)
    await world.pin()
    read: list[Any] = []
    async with over_stdio(world, mode) as client:
        assert [each.uri for each in (await client.list_resources()).resources] == ["note://one"]
        assert [each.name for each in (await client.list_prompts()).prompts] == ["greet"]
        for ask in (lambda: client.read_resource("note://one"), lambda: client.get_prompt("greet", {"who": "Ada"})):
            with pytest.raises(MCPError, match=r"is pending\. .* Then make exactly the same call again\.$") as error:
                await ask()
            assert error.value.code == 403
            desk.grant()
            read.append(await ask())
    assert [read[0].contents[0].text, read[1].messages[0].content.text] == ["a note", "Greet Ada."]
    asked = [approval.request for approval in desk.all()]
    assert [each["action"]["name"] for each in asked] == ["resources/read", "prompts/get"]
    resources = [{"type": "resource", "id": "note://one"}, {"type": "prompt", "id": "greet"}]
    assert [{key: each["resource"][key] for key in ("type", "id")} for each in asked] == resources
    assert desk.states == ["consumed", "consumed"]


@pytest.mark.process
async def test_client_that_reads_a_held_resource_gets_an_approval_page(tmp_path: Path) -> None:
    world = World(tmp_path, one={})
    desk, pages = Desk(world), []
    await world.pin(approval_page="https://approvals.example/?id=", hold=50)

    async def opens(_: Any, page: types.ElicitRequestURLParams) -> types.ElicitResult:
        pages.append(page.url)
        desk.grant()
        return types.ElicitResult(action="accept")

    async with over_http(world) as gateway, gateway.client(desk.token(AGENT), elicitation_callback=opens) as client:
        result: Any = await client.read_resource("note://one")
    assert result.contents[0].text == "a note"
    assert pages == [f"https://approvals.example/?id={desk.all()[0].id}"]


@pytest.mark.process
async def test_gateway_ignores_an_authzen_mapping_that_a_server_declares(tmp_path: Path) -> None:
    mapped = {"evaluation": {"action": {"name": "harmless"}, "resource": {"type": "nothing", "id": "$params.name"}}}
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "x-authzen-mapping": mapped}
    world = World(tmp_path, one={"tools": [{"name": "echo", "inputSchema": schema}]})
    await world.pin()
    async with world.client() as client:
        await client.call_tool("echo", {"text": "hi"})
    (approval,) = Desk(world).all()
    assert (approval.request["action"]["name"], approval.request["resource"]["id"]) == ("echo", "echo")
    assert json.loads((tmp_path / "pins.json").read_text())["one"]["echo"]["inputSchema"] == schema
