"""Runs of the Claude Agent SDK with a scripted model execute only calls that the adapter allows."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    SdkMcpTool,
    StreamEvent,
    create_sdk_mcp_server,
)

from pdp import Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options
from pdp.errors import UsageError
from pdp.hooks.home import HookPolicy, open_policy
from pdp.hooks.starter import starter_files
from pdp.testing.conformance.world import World
from tests.adapters.claude_agent_sdk.target import scripted, sdk_tools
from tests.adapters.client import grant
from tests.support.claude_code import ToolResult, ToolUse, Turn, model

DISK = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}
NOTE = ToolUse("mcp__kit__read_note", {"note": "n"})
BILL, OTHER_BILL = (ToolUse("mcp__kit__pay_bill", {"payee": payee, "amount": 5}) for payee in "ab")
_APPROVAL = re.compile(r".* \(approval (\w+) is pending\)")


async def wiped(_: Any) -> dict[str, Any]:
    raise NotImplementedError


def server(**schemas: Any) -> Any:
    return create_sdk_mcp_server("kit", tools=[SdkMcpTool(name, "", schema, wiped) for name, schema in schemas.items()])


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[HookPolicy]:
    home = tmp_path / "policy"
    (home / "state").mkdir(parents=True)
    for name, content in starter_files("alice").items():
        (home / name).write_bytes(content)
    with ExitStack() as owned:
        yield open_policy(home, owned)


async def run(
    world: World,
    pep: Pep,
    turns: Sequence[Turn],
    session: Any = World.session,
    policy: HookPolicy | None = None,
    env: dict[str, str] | None = None,
    **given: Any,
) -> tuple[list[str], list[Any]]:
    """Run the client. Return its messages, and for each call the result that the model got or the approval's id."""
    with model(turns) as (url, results):
        kit = create_sdk_mcp_server("kit", tools=sdk_tools(pep, world))
        options = scripted(world.folder, url, mcp_servers={"kit": kit}, **given)
        options = replace(options, env={**options.env, **(env or {})}, allowed_tools=[*options.allowed_tools, "Bash"])
        async with ClaudeSDKClient(await guarded_claude_options(options, pep, session, policy)) as client:
            await client.query("work")
            messages = [message async for message in client.receive_response()]
        return words(results()), messages


def words(results: list[ToolResult]) -> list[str]:
    return [_APPROVAL.sub(r"\1", result.text) for result in results]


def dispatched(pep: Pep) -> list[tuple[str, str | None]]:
    """Return the tool and the agent of each call on which the policy decided."""
    events = [event for event in pep.audit.events if event["type"].endswith(".dispatch")]  # type: ignore[attr-defined]
    return [(event["tool_name"], event["agent"]) for event in events]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mcp_servers": "servers.json"}, "mcp_servers must be a dict"),
        ({"mcp_servers": {"far": {"type": "http", "url": "http://127.0.0.1:1"}}}, "no policy that decides"),
        ({"tools": ["Bash"]}, "no policy that decides"),
        ({"extra_args": {"bare": None}}, "extra_args"),
        ({"mcp_servers": {"a": server(wipe_disk=DISK), "b": server(wipe_disk=DISK)}}, "two servers"),
        (
            {"mcp_servers": {"a": server(wipe_disk=DISK | {"properties": {"disk": {"type": "integer"}}})}},
            "wipe_disk: disk",
        ),
    ],
)
async def test_options_that_cannot_be_guarded_are_errors(pep: Pep, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        await guarded_claude_options(ClaudeAgentOptions(**options), pep, World.session)

    assert why in caught.value.message


@pytest.mark.process
async def test_held_calls_of_a_turn_run_once_when_granted_in_any_order(pep: Pep, world: World) -> None:
    held: list[str] = []

    def granted(number: int) -> Any:
        def turn(told: list[ToolResult]) -> list[ToolUse]:
            held[:] = held or words(told)
            grant(pep, held[number])
            return [BILL, OTHER_BILL]

        return turn

    told, _ = await run(world, pep, [[BILL, OTHER_BILL], granted(1), granted(0)])

    paid = ['pay_bill got {"amount":5,"payee":"b"}', 'pay_bill got {"amount":5,"payee":"a"}']
    assert told == [held[0], held[1], held[0], paid[0], paid[1], ANY]
    assert world.ran() == [("pay_bill", OTHER_BILL.arguments), ("pay_bill", BILL.arguments)]


@pytest.mark.process
@pytest.mark.parametrize("given", [{}, {"include_partial_messages": True}, {"permission_mode": "bypassPermissions"}])
async def test_calls_are_decided_in_every_permission_mode_of_the_client(
    pep: Pep, world: World, given: dict[str, Any]
) -> None:
    wipe = ToolUse("mcp__kit__wipe_disk", {"disk": "a"})
    told, messages = await run(world, pep, [[NOTE], [BILL], [wipe]], env={"IS_SANDBOX": "1"}, **given)

    assert told[0] == 'read_note got {"note":"n"}'
    assert re.fullmatch(r"\w+", told[1])
    assert world.ran() == [("read_note", {"note": "n"})]
    assert any(isinstance(message, StreamEvent) for message in messages) == ("include_partial_messages" in given)


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({}, {}),
        ({"permission_mode": "bypassPermissions"}, {"IS_SANDBOX": "1"}),
        ({"settings": '{"disableAllHooks": true}'}, {}),
        ({}, {"CLAUDE_CODE_SIMPLE": "1"}),
    ],
)
async def test_hook_policy_decides_built_in_tools_of_claude_code(
    pep: Pep, world: World, policy: HookPolicy, given: dict[str, Any], variables: dict[str, str]
) -> None:
    listed, held = ToolUse("Bash", {"command": "pwd"}), ToolUse("Bash", {"command": "touch ran$$"})

    told, _ = await run(world, pep, [[listed], [held], [NOTE]], policy=policy, env=variables, **given)

    workspace = world.folder / "workspace"
    assert (told[0], told[2]) == (str(workspace), 'read_note got {"note":"n"}')
    assert "run_command: touch ran$$ waits for approval" in told[1]
    assert list(workspace.iterdir()) == []


@pytest.mark.process
async def test_client_without_a_hook_policy_has_no_built_in_tools(pep: Pep, world: World) -> None:
    told, _ = await run(world, pep, [[ToolUse("Bash", {"command": "touch ran"})], [NOTE]])

    assert "No such tool available: Bash" in told[0]
    assert list((world.folder / "workspace").iterdir()) == []


@pytest.mark.process
async def test_audit_records_the_name_of_the_sub_agent(pep: Pep, world: World, policy: HookPolicy) -> None:
    work = {"description": "d", "prompt": "p", "subagent_type": "helper", "run_in_background": False}
    helper = AgentDefinition(description="d", prompt="p", tools=[NOTE.tool])

    # The sub-agent's model follows the same script, but its first call `Agent` is rejected, because the sub-agent lacks
    # this tool.
    await run(world, pep, [[ToolUse("Agent", work)], [NOTE]], policy=policy, agents={"helper": helper})

    assert dispatched(pep) == [("read_note", "helper"), ("read_note", "agent:kit")]


@pytest.mark.process
async def test_session_function_gets_the_hook_input_without_arguments(pep: Pep, world: World) -> None:
    contexts: list[Any] = []

    def session(context: Any) -> Any:
        contexts.append(context)
        return World.session

    await run(world, pep, [[NOTE]], session)

    assert contexts[0] == {}
    assert sorted(contexts[-1].keys() & {"session_id", "cwd", "tool_use_id", "tool_input"}) == [
        "cwd", "session_id", "tool_use_id",
    ]  # fmt: skip


@pytest.mark.process
async def test_arguments_changed_by_another_hook_are_decided(pep: Pep, world: World) -> None:
    async def changed(*_: Any) -> Any:
        change = {"permissionDecision": "allow", "updatedInput": {"disk": "everything"}}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **change}}

    hooks: Any = {"PreToolUse": [HookMatcher(matcher="mcp__kit__wipe_disk|mcp__kit__read_note", hooks=[changed])]}
    told, _ = await run(world, pep, [[NOTE], [ToolUse("mcp__kit__wipe_disk", {"disk": "a"})]], hooks=hooks)

    assert (world.ran(), len(told)) == ([], 2)
