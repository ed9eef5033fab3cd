"""Each method of MCP has its line in the mapping, in either revision; resources and prompts are held as calls are."""

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types.methods import SPEC_CLIENT_METHODS

from pdp.gateway.mapping import DECIDED, FILTERED, OF_TASKS, PASSED
from tests.support.mcp.gateway import World
from tests.support.mcp.waiting import AGENT, Desk, over_http, over_stdio


def test_every_method_of_the_sdk_has_a_line_and_one_alone() -> None:
    refused = ["completion/complete", "resources/subscribe", "resources/unsubscribe"]
    lines = [*DECIDED, *FILTERED, *OF_TASKS, *PASSED, *refused]
    assert len(set(lines)) == len(lines)
    assert set(lines) - set(SPEC_CLIENT_METHODS) == {*OF_TASKS, "notifications/initialized"}
    assert set(SPEC_CLIENT_METHODS) - set(lines) == set()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["new-client", "old-client"])
async def test_resources_and_prompts_are_the_requests_that_authzen_maps(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, one={})
    desk = Desk(world)
    await world.pin()
    read: list[Any] = []
    async with over_stdio(world, mode) as client:
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
async def test_a_page_may_be_opened_for_a_resource(tmp_path: Path) -> None:
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
async def test_what_a_server_maps_itself_decides_nothing(tmp_path: Path) -> None:
    mapped = {"evaluation": {"action": {"name": "harmless"}, "resource": {"type": "nothing", "id": "$params.name"}}}
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "x-authzen-mapping": mapped}
    world = World(tmp_path, one={"tools": [{"name": "echo", "inputSchema": schema}]})
    await world.pin()
    async with world.client() as client:
        await client.call_tool("echo", {"text": "hi"})
    (approval,) = Desk(world).all()
    assert (approval.request["action"]["name"], approval.request["resource"]["id"]) == ("echo", "echo")
    assert json.loads((tmp_path / "pins.json").read_text())["one"]["echo"]["inputSchema"] == schema
