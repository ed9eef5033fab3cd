"""The adapter of the Claude Agent SDK, on runs of its client with a scripted model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
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

from pdp import Approvals, Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options
from pdp.errors import UsageError
from pdp.hooks.home import HookPolicy, open_policy
from pdp.hooks.starter import starter_files
from pdp.testing.conformance.world import World
from tests.adapters.claude_agent_sdk.target import scripted, sdk_tools
from tests.conformance.local import opened_pep
from tests.support import ROOT
from tests.support.claude_code import ToolResult, ToolUse, Turn, model

MANIFEST = "pdp/testing/conformance/manifest.yaml"
STORY = """\
officer-123: pay 20,000
  payment hub: 20,000 from ops-main to bene-acme-441
  model is told: sent INV-8842
officer-123: pay 47,500
  model is told: POLICY_VIOLATION: STEP_UP: limits.exceeded:
supervisor-9: granted what waits for payments.approver
officer-123: pay 47,500
  payment hub: 47,500 from ops-main to bene-acme-441
  model is told: sent INV-8842
officer-123: pay 47,500
  model is told: sent INV-8842
"""
DISK = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}
NOTE = ToolUse("mcp__kit__read_note", {"note": "n"})
BILL, OTHER_BILL = (ToolUse("mcp__kit__pay_bill", {"payee": payee, "amount": 5}) for payee in "ab")
_APPROVAL = re.compile(r".* \(approval (\w+) is pending\)")


async def wiped(_: Any) -> dict[str, Any]:
    raise NotImplementedError


def server(**schemas: Any) -> Any:
    return create_sdk_mcp_server("kit", tools=[SdkMcpTool(name, "", schema, wiped) for name, schema in schemas.items()])


@pytest.fixture
def pep() -> Iterator[Pep]:
    with Pep.from_files(MANIFEST, approvals=Approvals()) as opened:
        yield opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path / "world")) as opened:
        yield opened


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
    """Run the client; what the model is told, of a held call the approval's id alone, and the messages."""
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


def grant(pep: Pep, held: str) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(held, World.approver)


def dispatched(pep: Pep) -> list[tuple[str, str | None]]:
    """Of each call that was decided: the tool, and the agent that called."""
    events = [event for event in pep.audit.events if event["type"].endswith(".dispatch")]  # type: ignore[attr-defined]
    return [(event["tool_name"], event["agent"]) for event in events]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mcp_servers": "servers.json"}, "mcp_servers is a file"),
        ({"mcp_servers": {"far": {"type": "http", "url": "http://127.0.0.1:1"}}}, "nothing decides"),
        ({"tools": ["Bash"]}, "nothing decides"),
        ({"extra_args": {"bare": None}}, "extra_args"),
        ({"mcp_servers": {"a": server(wipe_disk=DISK), "b": server(wipe_disk=DISK)}}, "two servers"),
        (
            {"mcp_servers": {"a": server(wipe_disk=DISK | {"properties": {"disk": {"type": "integer"}}})}},
            "wipe_disk: disk",
        ),
    ],
)
async def test_what_cannot_be_guarded_is_refused_at_start(pep: Pep, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        await guarded_claude_options(ClaudeAgentOptions(**options), pep, World.session)

    assert why in caught.value.message


@pytest.mark.process
async def test_calls_that_are_held_together_are_granted_out_of_order_and_run_once(pep: Pep, world: World) -> None:
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
def test_a_held_call_is_made_again_in_another_process(world: World) -> None:
    line = [sys.executable, "-m", "tests.adapters.claude_agent_sdk.again", str(world.folder)]
    first = json.loads(subprocess.run(line, cwd=ROOT, capture_output=True, check=True).stdout)
    with opened_pep(world) as pep:
        grant(pep, first["told"][0])
    second = json.loads(subprocess.run([*line, first["session"]], cwd=ROOT, capture_output=True, check=True).stdout)

    assert second == {"session": first["session"], "told": [*first["told"], 'pay_bill got {"amount":5,"payee":"a"}']}
    assert world.ran() == [("pay_bill", BILL.arguments)]


@pytest.mark.process
@pytest.mark.parametrize("given", [{}, {"include_partial_messages": True}, {"permission_mode": "bypassPermissions"}])
async def test_calls_are_decided_however_the_client_is_told_to_run(
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
async def test_the_clients_own_tools_are_decided_by_the_policy_of_hooks(
    pep: Pep, world: World, policy: HookPolicy, given: dict[str, Any], variables: dict[str, str]
) -> None:
    listed, held = ToolUse("Bash", {"command": "pwd"}), ToolUse("Bash", {"command": "touch ran$$"})

    told, _ = await run(world, pep, [[listed], [held], [NOTE]], policy=policy, env=variables, **given)

    workspace = world.folder / "workspace"
    assert (told[0], told[2]) == (str(workspace), 'read_note got {"note":"n"}')
    assert "run_command: touch ran$$ is held" in told[1]
    assert list(workspace.iterdir()) == []


@pytest.mark.process
async def test_without_that_policy_the_client_has_no_tools_of_its_own(pep: Pep, world: World) -> None:
    told, _ = await run(world, pep, [[ToolUse("Bash", {"command": "touch ran"})], [NOTE]])

    assert "No such tool available: Bash" in told[0]
    assert list((world.folder / "workspace").iterdir()) == []


@pytest.mark.process
async def test_an_agent_below_is_known_by_its_own_name(pep: Pep, world: World, policy: HookPolicy) -> None:
    work = {"description": "d", "prompt": "p", "subagent_type": "helper", "run_in_background": False}
    helper = AgentDefinition(description="d", prompt="p", tools=[NOTE.tool])

    # The model of the agent below is the same script: its first call is refused, as it has no such tool.
    await run(world, pep, [[ToolUse("Agent", work)], [NOTE]], policy=policy, agents={"helper": helper})

    assert dispatched(pep) == [("read_note", "helper"), ("read_note", "agent:kit")]


@pytest.mark.process
async def test_the_session_is_made_of_what_the_client_tells_and_not_of_the_arguments(pep: Pep, world: World) -> None:
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
async def test_arguments_that_another_hook_changes_are_those_decided(pep: Pep, world: World) -> None:
    async def changed(*_: Any) -> Any:
        change = {"permissionDecision": "allow", "updatedInput": {"disk": "everything"}}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **change}}

    hooks: Any = {"PreToolUse": [HookMatcher(matcher="mcp__kit__wipe_disk|mcp__kit__read_note", hooks=[changed])]}
    told, _ = await run(world, pep, [[NOTE], [ToolUse("mcp__kit__wipe_disk", {"disk": "a"})]], hooks=hooks)

    assert (world.ran(), len(told)) == ([], 2)


@pytest.mark.process
def test_a_wire_is_held_granted_and_made_once_in_the_example() -> None:
    ended = subprocess.run(
        [sys.executable, "examples/frameworks/claude_agent_sdk_payments.py"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (0, STORY)
