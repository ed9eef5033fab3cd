"""The gateway tells clients of both revisions about a held call, over stdio and HTTP. No client can approve it."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from pdp.stores.approvals import Approval
from tests.support.mcp.gateway import BOTH, World, shown
from tests.support.mcp.waiting import Desk, TasksOfClient, over_http, over_stdio

pytestmark = pytest.mark.process

PAGE = "https://approvals.example/"
CONSOLE = "https://pdp.example/console/approvals/"


def held(approval: Approval, how: str) -> str:
    """Return the text that tells a client about a pending approval."""
    return (
        f"STEP_UP (approvals.required): approval {approval.id} of {approval.tool} is pending. Until "
        f"{approval.expires_at}, the person at this client can grant it {how}. Then make exactly the "
        "same call again."
    )


@BOTH
@pytest.mark.parametrize("http", [False, True], ids=["stdio", "http"])
async def test_client_gets_a_task_an_approval_page_or_a_text_for_a_held_call(
    tmp_path: Path, mode: str, *, http: bool
) -> None:
    world, pages = World(tmp_path, one={}), []
    desk, tasks = Desk(world), TasksOfClient(Desk(world))
    await world.pin(hold=50, **({} if http else {"approval_page": PAGE}))
    page = CONSOLE if http else PAGE
    with (tmp_path / "pdp.yaml").open("a") as project:
        project.write("public_url: https://pdp.example\n")

    async def opens(_: Any, asked: types.ElicitRequestURLParams) -> types.ElicitResult:
        pages.append((asked.message, asked.url))
        desk.grant()
        return types.ElicitResult(action="accept")

    async with AsyncExitStack() as stack:
        connect: Any = partial(over_stdio, world)
        if http:
            gateway, token = await stack.enter_async_context(over_http(world)), desk.token()
            connect = partial(gateway.client, token)
        both = {"elicitation_callback": opens, "extensions": [tasks]}
        async with connect(mode=mode, **both) as client:
            assert shown(await client.call_tool("echo", {"text": "task"})) == (False, ["task"])
        async with connect(mode=mode, elicitation_callback=opens) as client:
            assert shown(await client.call_tool("echo", {"text": "page"})) == (False, ["page"])
        async with connect(mode=mode) as client:
            call = asyncio.create_task(client.call_tool("echo", {"text": "hold"}))
            await desk.waiting(3)
            desk.grant()
            assert shown(await call) == (False, ["hold"])
    new = mode == "auto"  # The SDK has types for tasks of the older revision, but rejects a result that is a task.
    assert tasks.statuses == (["working", "working", "completed"] if new else [])
    asked = desk.all()
    told = [(held(each, f"at {page}{each.id}"), f"{page}{each.id}") for each in asked[new:2]]
    assert pages == told
    assert [call["arguments"]["text"] for call in world.calls()] == ["task", "page", "hold"]
    assert [str(each.state) for each in asked] == ["consumed"] * 3


@BOTH
async def test_client_without_extensions_gets_instructions_as_text(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, one={})
    desk = Desk(world)
    await world.pin()
    async with over_stdio(world, mode) as client:
        first, again = [shown(await client.call_tool("echo", {"text": "hi"})) for _ in range(2)]
        (approval,) = desk.all()
        line = f"PDP_PROJECT={tmp_path}/pdp.yaml pdp approvals grant {approval.id} --session {tmp_path}/approver.yaml"
        assert first == again == (True, [held(approval, f"with `{line}` in their own terminal")])
        desk.grant()
        assert shown(await client.call_tool("echo", {"text": "other"}))[0] is True
        assert shown(await client.call_tool("echo", {"text": "hi"})) == (False, ["hi"])
    assert [call["arguments"]["text"] for call in world.calls()] == ["hi"]
    assert desk.states == ["consumed", "pending"]
