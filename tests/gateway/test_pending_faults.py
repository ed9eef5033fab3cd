"""No call runs before its approval is granted, even if a client lies or a part fails while the call is held."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError

from pdp.gateway.pending import TASKS
from tests.support.mcp.gateway import BOTH, World, shown
from tests.support.mcp.waiting import (
    AGENT,
    Desk,
    TasksOfClient,
    ask_for_task,
    cancel_task,
    over_http,
    task_of,
)

pytestmark = pytest.mark.process

PAGE = "https://approvals.example/"
ACCEPT = {"approval": types.ElicitResult(action="accept")}
HI = {"text": "hi"}


def state_of(result: Any) -> tuple[bool, str]:
    """Return whether the result is an error, and the state of the approval that its text names."""
    is_error, (text,) = shown(result)
    return is_error, text.partition(" is ")[2].partition(".")[0]


async def accepts(*_: Any) -> types.ElicitResult:
    """Answer like a client whose user opened the approval page but did nothing on the page."""
    return types.ElicitResult(action="accept")


async def declines(*_: Any) -> types.ElicitResult:
    """Answer like a client whose user did not open the approval page."""
    return types.ElicitResult(action="decline")


async def made(folder: Path, **stated: Any) -> tuple[World, Desk]:
    """Return a gateway that holds every call for approval."""
    world = World(folder, one={})
    await world.pin(**stated)
    return world, Desk(world)


async def asked(client: Any, arguments: dict[str, Any], **retry: Any) -> Any:
    """Send one request without the follow-up requests that a client would send, and return the result."""
    return await client.session.call_tool("echo", arguments, allow_input_required=True, **retry)


async def test_request_state_of_a_held_call_is_accepted_once_and_only_for_that_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, desk = await made(tmp_path, approval_page=PAGE)
    async with world.client(elicitation_callback=accepts) as client:
        state = (await asked(client, HI)).request_state
        desk.grant()

        async def refused(arguments: dict[str, Any], state: str) -> None:
            with pytest.raises(MCPError) as error:
                await asked(client, arguments, input_responses=ACCEPT, request_state=state)
            message = "Invalid or expired requestState"
            assert (error.value.code, error.value.message) == (types.INVALID_PARAMS, message)

        await refused({"text": "other"}, state)
        await refused(HI, state[:-1] + ("A" if state[-1] != "A" else "B"))
        await refused(HI, "v1.AAAA")
        with monkeypatch.context() as patch:
            late = SimpleNamespace(time=lambda: time.time() + 3601)
            patch.setattr("mcp.server.request_state.time", late)
            await refused(HI, state)
        assert world.calls() == []
        assert shown(await asked(client, HI, input_responses=ACCEPT, request_state=state)) == (False, ["hi"])
        await refused(HI, state)
    async with world.client(elicitation_callback=accepts) as other:
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await asked(other, HI, input_responses=ACCEPT, request_state=state)
    assert [call["arguments"] for call in world.calls()] == [HI]
    assert desk.states == ["consumed"]


async def test_request_state_or_task_of_another_principal_is_rejected(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, approval_page=PAGE)
    async with over_http(world) as gateway:
        mine, same, theirs = desk.token(), desk.token(), desk.token({**AGENT, "sub": "somebody else"})
        async with gateway.client(mine, elicitation_callback=accepts) as client:
            state = (await asked(client, HI)).request_state
        tasks = TasksOfClient(desk)
        async with gateway.client(mine, extensions=[tasks]) as client:
            task = await task_of(client, HI)
        desk.grant()
        for token in (same, theirs):
            async with gateway.client(token, elicitation_callback=accepts) as client:
                with pytest.raises(MCPError, match="Invalid or expired requestState"):
                    await asked(client, HI, input_responses=ACCEPT, request_state=state)
                with pytest.raises(MCPError, match="no such task"):
                    await ask_for_task(client.session, task)
                await cancel_task(client.session, task)
        assert world.calls() == []
        async with gateway.client(mine, extensions=[tasks]) as client:
            said = await ask_for_task(client.session, task)
        assert (said["status"], said["result"]["content"]) == ("completed", [{"type": "text", "text": "hi"}])
    assert desk.states == ["consumed"]


@BOTH
async def test_opening_an_approval_page_does_not_grant_the_call(tmp_path: Path, mode: str) -> None:
    world, desk = await made(tmp_path, approval_page=PAGE)
    for says in (accepts, declines):
        async with world.client(mode, elicitation_callback=says) as client:
            assert state_of(await client.call_tool("echo", HI)) == (True, "pending")
    assert world.calls() == []
    assert desk.states == ["pending"]


async def test_call_denied_while_held_does_not_run(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, hold=50)
    async with world.client() as client:
        call = asyncio.create_task(client.call_tool("echo", HI))
        await desk.waiting(1)
        desk.deny("not today")
        (approval,) = desk.all()
        text = (
            f"STEP_UP (approvals.required): approval {approval.id} of echo is denied: not today. The tool did not run."
        )
        assert shown(await call) == (True, [text])
    assert world.calls() == []
    assert desk.states == ["denied"]


async def test_call_with_an_expired_approval_does_not_run(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, hold=50)
    rules = tmp_path / "governance.yaml"
    rules.write_text(rules.read_text().replace("PT1H", "PT1S"))
    async with world.client() as client:
        assert state_of(await client.call_tool("echo", HI)) == (True, "expired")
    assert world.calls() == []
    assert desk.states == ["expired"]


async def test_only_one_of_two_clients_waiting_for_an_approval_runs_the_call(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, hold=50)
    async with world.client() as first, world.client("legacy") as second:
        calls = [asyncio.create_task(client.call_tool("echo", HI)) for client in (first, second)]
        await desk.waiting(1)
        desk.grant()
        answers = [shown(await call) for call in calls]
    assert answers.count((False, ["hi"])) == 1
    assert [call["arguments"] for call in world.calls()] == [HI]


async def test_approval_of_a_held_call_cannot_be_used_for_a_second_run(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, approval_page=PAGE)
    async with world.client(elicitation_callback=accepts) as first, world.client("legacy") as second:
        state = (await asked(first, HI)).request_state
        desk.grant()
        assert shown(await second.call_tool("echo", HI)) == (False, ["hi"])
        assert desk.states == ["consumed"]
        assert state_of(await asked(first, HI, input_responses=ACCEPT, request_state=state)) == (True, "pending")
    assert [call["arguments"] for call in world.calls()] == [HI]
    assert desk.states == ["consumed", "pending"]


async def test_cancelled_call_leaves_its_approval_unused(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, hold=50)
    async with world.client() as client:
        call = asyncio.create_task(client.call_tool("echo", HI))
        await desk.waiting(1)
        call.cancel()
        await asyncio.wait((call,))
        desk.grant()
    assert world.calls() == []
    assert desk.states == ["granted"]
    world.write()
    async with world.client() as client:
        assert shown(await client.call_tool("echo", HI)) == (False, ["hi"])
    assert desk.states == ["consumed"]


async def test_held_call_ends_if_the_store_fails(tmp_path: Path) -> None:
    world, desk = await made(tmp_path, hold=50)
    async with world.client() as client:
        call = asyncio.create_task(client.call_tool("echo", HI))
        await desk.waiting(1)
        with closing(sqlite3.connect(tmp_path / "store.db")) as database:
            database.execute("DROP TABLE pdp_approvals")
        with pytest.raises(MCPError, match=r"^store\.unavailable: see the gateway's log\. The tool did not run\.$"):
            await call
    assert world.calls() == []


async def test_finished_task_does_not_run_again_and_cancelled_task_remains_cancelled(tmp_path: Path) -> None:
    world, desk = await made(tmp_path)
    async with world.client(extensions=[TasksOfClient(desk)]) as client:
        first = await task_of(client, HI)
        second = await task_of(client, {"text": "ho"})
        await cancel_task(client.session, second)
        desk.grant()
        await cancel_task(client.session, "unknown")
        with pytest.raises(MCPError, match="no such task"):
            await ask_for_task(client.session, "unknown")
        desk.deny("no", 0)
        said = [await ask_for_task(client.session, task) for task in (first, second)]
        assert [each["status"] for each in said] == ["completed", "cancelled"]
        assert said[0]["result"]["isError"] is True
    assert world.calls() == []
    assert desk.states == ["denied", "granted"]


async def test_gateway_creates_a_task_only_if_the_request_declares_tasks(tmp_path: Path) -> None:
    world, desk = await made(tmp_path)
    async with world.client(extensions=[advertise("example.com/other")]) as client:
        assert state_of(await client.call_tool("echo", HI)) == (True, "pending")
        request = types.CallToolRequestParams(name="echo", arguments=HI, task=types.TaskMetadata())
        plain = await client.session.send_request(types.CallToolRequest(params=request), types.CallToolResult)
        assert state_of(plain) == (True, "pending")
    async with world.client("legacy", extensions=[advertise(TASKS)]) as client:
        plain = await client.session.send_request(types.CallToolRequest(params=request), types.CallToolResult)
        assert state_of(plain) == (True, "pending")
        with pytest.raises(MCPError, match="Method not found"):
            await ask_for_task(client.session, desk.all()[0].id)
