"""Runs of the OpenAI Agents SDK execute only allowed calls. Agents with tools that cannot be guarded do not start."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import orjson
import pytest
from agents import Agent, Runner, RunState, function_tool, handoff
from agents.mcp import MCPServer
from agents.testing import ScriptedModel, assistant_message, function_call
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import BaseModel

from pdp import Approvals, Pep
from pdp.adapters.openai_agents import guarded_openai_agent
from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.testing.conformance.world import World
from tests.adapters.openai_agents.target import CONFIG, kit_tools, outputs
from tests.support import ROOT

SUITE = read_document(ROOT / "pdp/testing/conformance/manifest.yaml").value
CLERK = {
    "name": "ask_clerk",
    "version": "1.0.0",
    "effect_class": "read-internal",
    "scopes": ["kit.use"],
    "schema": {"type": "object", "required": ["input"], "properties": {"input": {"type": "string", "maxLength": 200}}},
}


class Reason(BaseModel):
    reason: str


FIRST, SECOND = {"payee": "a", "amount": 1}, {"payee": "b", "amount": 2}
DONE = [assistant_message("done")]
NOTE = {"note": "a"}


class Kit:
    """The suite's tools, an enforcement point in this process, and a record of the calls that ran."""

    def __init__(self, folder: Path, pep: Pep) -> None:
        self.pep, self.record = pep, folder / "ran.jsonl"
        self.record.touch()
        self.tools = {tool.name: tool for tool in kit_tools(SimpleNamespace(record=self.record))}  # type: ignore[arg-type]

    def agent(self, *steps: Any, name: str = "kit", session: Any = World.session, **options: Any) -> Any:
        given = {"tools": [*self.tools.values()], **options}
        return guarded_openai_agent(Agent(name=name, model=ScriptedModel(steps), **given), self.pep, session)

    @property
    def ran(self) -> list[Any]:
        return [orjson.loads(line)[1] for line in self.record.read_bytes().splitlines()]

    @property
    def callers(self) -> list[Any]:
        """Return the agent and the tool of each call that ran."""
        events: list[Any] = self.pep.audit.events  # type: ignore[attr-defined]
        return [(each["agent"], each["tool_name"]) for each in events if each["type"].endswith(".result")]

    def grant(self, held: Any) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held["approval_id"], World.approver)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    (tmp_path / "manifest.yaml").write_bytes(orjson.dumps({**SUITE, "tools": [*SUITE["tools"], CLERK]}))
    with Pep.from_files(tmp_path / "manifest.yaml", approvals=Approvals()) as pep:
        yield Kit(tmp_path, pep)


def calls(*made: tuple[str, Any]) -> list[Any]:
    return [function_call(tool, arguments, call_id=f"c{number}") for number, (tool, arguments) in enumerate(made)]


def start(agent: Any, given: Any = "go", **options: Any) -> Any:
    return asyncio.run(Runner.run(agent, given, run_config=CONFIG, **options))


def resume(result: Any, *, agent: Any = None, always: bool = False) -> Any:
    """Approve every pending call in the SDK, as an application does, and resume the paused run."""
    state = result.to_state() if agent is None else result
    for item in state.get_interruptions():
        state.approve(item, always_approve=always)
    return start(agent or result.last_agent, state)


def pending(result: Any) -> list[Any]:
    return [asyncio.run(item.agent.pending(item)) for item in result.interruptions]


def test_each_held_call_of_a_turn_runs_once_when_granted(kit: Kit) -> None:
    result = start(kit.agent(calls(("pay_bill", FIRST), ("pay_bill", SECOND)), DONE))
    first, second = pending(result)
    assert (first["tool"], first["approvers"], kit.ran) == ("pay_bill", ["kit.approver"], [])
    kit.grant(second)

    state = result.to_state()
    state.approve(result.interruptions[1])
    half = start(result.last_agent, state)
    assert (kit.ran, pending(half)) == ([SECOND], [first])
    kit.grant(first)
    whole = resume(half)

    assert (whole.final_output, kit.ran) == ("done", [SECOND, FIRST])


@pytest.mark.parametrize("always", [False, True])
def test_approval_in_the_sdk_does_not_grant_the_call(kit: Kit, *, always: bool) -> None:
    held = start(kit.agent(calls(("pay_bill", FIRST)), [function_call("pay_bill", FIRST, call_id="again")], DONE, DONE))

    told = resume(held, always=always)

    assert kit.ran == []
    assert all(pending(held)[0]["approval_id"] in text for text in outputs(told))
    # If the SDK always approves a tool, its call does not pause the run, but the call is still held.
    assert (len(outputs(told)), len(told.interruptions)) == ((2, 0) if always else (1, 1))


def test_rejected_call_does_not_run_even_if_granted(kit: Kit) -> None:
    held = start(kit.agent(calls(("pay_bill", FIRST)), DONE))
    kit.grant(pending(held)[0])
    state = held.to_state()
    state.reject(held.interruptions[0])

    told = start(held.last_agent, state)

    assert (outputs(told), kit.ran) == (["Tool execution was not approved."], [])


RESUME = """
import asyncio, sys
from pathlib import Path
from tests.adapters.openai_agents.test_openai_agents import finish
asyncio.run(finish(Path(sys.argv[1])))
"""


@pytest.mark.process
def test_paused_run_resumes_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_bytes(orjson.dumps(SUITE))
    project = {"manifest": "manifest.yaml", "store": "sqlite:///store.db"}
    tmp_path.chmod(0o700)
    (tmp_path / "pdp.yaml").write_bytes(orjson.dumps(project))
    with Pep.from_project(tmp_path / "pdp.yaml") as pep:
        kit = Kit(tmp_path, pep)
        held = start(kit.agent(calls(("pay_bill", FIRST))))
        kit.grant(pending(held)[0])
        (tmp_path / "state.json").write_text(held.to_state().to_string())

        process(RESUME, str(tmp_path))

    assert kit.ran == [FIRST]


async def finish(folder: Path) -> None:
    with Pep.from_project(folder / "pdp.yaml") as pep:
        agent = Kit(folder, pep).agent(DONE)
        state = await RunState.from_string(agent, (folder / "state.json").read_text())
        for _ in range(2):  # Resume twice, because a person may click twice.
            again = await RunState.from_string(agent, state.to_string())
            again.approve(again.get_interruptions()[0])
            agent.model.enqueue(DONE)
            await Runner.run(agent, again, run_config=CONFIG)


def process(*words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(["-c"] if "\n" in words[0] else []), *words]
    return subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout


def test_policy_sees_the_name_of_the_agent_after_a_handoff(kit: Kit) -> None:
    clerk = Agent(name="clerk", model=ScriptedModel([calls(("read_note", NOTE)), DONE]), tools=[kit.tools["read_note"]])
    clerk.handoffs.append(clerk)  # The clerk can hand off to itself, so the handoffs form a cycle.

    result = start(kit.agent([function_call("transfer_to_clerk", {}, call_id="h")], handoffs=[clerk]))

    assert (result.last_agent.name, kit.ran, kit.callers) == ("clerk", [NOTE], [("clerk", "read_note")])


def test_held_call_of_an_agent_used_as_a_tool_pauses_the_outer_run(kit: Kit) -> None:
    clerk = kit.agent(calls(("pay_bill", FIRST)), [assistant_message("paid")], name="clerk")
    asked = [function_call("ask_clerk", {"input": "pay"}, call_id="n")]
    held = start(kit.agent(asked, DONE, tools=[clerk.as_tool("ask_clerk", "Ask the clerk.")]))
    kit.grant(pending(held)[0])

    done = resume(held)

    assert (outputs(done), kit.ran) == (["paid"], [FIRST])
    assert kit.callers == [("kit", "ask_clerk"), ("clerk", "pay_bill"), ("kit", "ask_clerk")]


def test_streamed_run_pauses_and_resumes(kit: Kit) -> None:
    async def streamed(agent: Any, given: Any) -> Any:
        result = Runner.run_streamed(agent, given, run_config=CONFIG)
        return result, [each.type async for each in result.stream_events()]

    agent = kit.agent(calls(("read_note", NOTE), ("pay_bill", FIRST)), DONE)
    held, _ = asyncio.run(streamed(agent, "go"))
    kit.grant(pending(held)[0])
    state = held.to_state()
    state.approve(held.interruptions[0])
    done, seen = asyncio.run(streamed(agent, state))

    assert (done.final_output, kit.ran, "run_item_stream_event" in seen) == ("done", [NOTE, FIRST], True)


def test_session_function_gets_the_context_of_the_run(kit: Kit) -> None:
    def session(context: Any) -> Any:
        return {**World.session, "run_id": context["case"]}

    start(kit.agent(calls(("read_note", NOTE)), DONE, session=session), context={"case": "case-1"})

    event = kit.pep.audit.events[0]  # type: ignore[attr-defined]
    assert (event["run_id"], event["agent"], event["tool_call_id"]) == ("case-1", "kit", "c0")


async def _ask_for_much(_: Any, arguments: Any, __: str) -> bool:
    return bool(arguments["host"] == "much")


@pytest.mark.parametrize(
    ("own", "tool", "arguments", "paused"),
    [
        (True, "read_note", NOTE, True),
        (_ask_for_much, "ping_host", {"host": "much"}, True),
        (_ask_for_much, "ping_host", {"host": "little"}, False),
        # For a call that the policy denies, the application's approval rule is not evaluated.
        (True, "fetch_page", {"url": 7}, False),
    ],
)
def test_approval_rule_of_the_application_applies_to_allowed_calls(
    kit: Kit, own: Any, tool: str, arguments: Any, *, paused: bool
) -> None:
    kit.tools[tool].needs_approval = own
    first = start(kit.agent(calls((tool, arguments)), DONE))

    assert (bool(first.interruptions), pending(first)) == (paused, [None] if paused else [])
    if paused:
        resume(first)
    assert kit.ran == ([] if tool == "fetch_page" else [arguments])


def test_call_whose_arguments_are_not_a_json_object_pauses_the_run_and_is_denied(kit: Kit) -> None:
    held = start(kit.agent(calls(("read_note", "[1]")), DONE))
    assert pending(held) == [None]

    (told,) = outputs(resume(held))

    assert (told.partition(":")[0], kit.ran) == ("INVALID_PAYLOAD", [])


async def _slow(context: Any, text: str) -> Any:
    await asyncio.Event().wait()


def test_error_message_of_a_tool_is_hidden_from_the_model(kit: Kit) -> None:
    slow = replace(kit.tools["read_note"], on_invoke_tool=_slow, timeout_seconds=0.05)
    made = calls(("post_note", NOTE), ("read_note", NOTE))

    result = start(kit.agent(made, DONE, tools=[kit.tools["post_note"], slow]))

    # The model sees the class of the exception, but not the message of the exception.
    assert outputs(result) == [
        "TOOL_EXECUTION_FAILED: RuntimeError",
        "Tool 'read_note' timed out after 0.05 seconds.",
    ]


def test_guarded_tool_that_is_set_to_end_the_run_on_failure_ends_the_run(kit: Kit) -> None:
    @function_tool(failure_error_function=None)
    def wipe_disk(disk: str) -> str:
        raise KeyError(disk)

    @function_tool(failure_error_function=None, strict_mode=False)
    def ping_host(host: str) -> str:
        raise KeyError(host)

    denied = [function_call("wipe_disk", {"disk": "a"}, call_id="c1")]
    with pytest.raises(agents.UserError, match="ping_host: 'there'"):
        start(kit.agent(denied, calls(("ping_host", {"host": "there"})), DONE, tools=[ping_host, wipe_disk]))


@pytest.mark.parametrize("payee", ["a", "nobody"])
def test_tool_with_an_output_type_returns_a_text_only_if_denied(kit: Kit, payee: str) -> None:
    @function_tool(output_type=Reason, strict_mode=False)
    def fetch_page(url: str, limit: float = 1) -> Reason:
        return Reason(reason=url)

    url = "a" if payee == "a" else "a" * 201
    (told,) = outputs(start(kit.agent(calls(("fetch_page", {"url": url, "limit": 1})), DONE, tools=[fetch_page])))

    assert told == "reason='a'" if payee == "a" else told.startswith("INVALID")


def test_tool_gets_only_arguments_that_the_policy_saw(kit: Kit) -> None:
    seen = []

    async def body(context: Any, text: str) -> str:
        seen.extend([text, context.tool_arguments])
        return "fetched"

    tool = replace(kit.tools["fetch_page"], on_invoke_tool=body)
    start(kit.agent(calls(("fetch_page", {"url": "a", "limit": 99})), DONE, tools=[tool]))

    assert seen == ['{"limit":10,"url":"a"}'] * 2


def test_policy_sees_the_new_name_of_a_copied_tool(kit: Kit) -> None:
    guarded = kit.agent(tools=[kit.tools["wipe_disk"]])
    posing = Agent(name="kit", model=ScriptedModel([calls(("read_note", {"disk": "a"})), DONE]))
    posing.tools = [replace(guarded.tools[0], name="read_note")]

    told = outputs(start(posing))

    assert (kit.ran, len(told), "wipe_disk" in kit.record.read_text()) == ([], 1, False)


def _shell(_: Any) -> str:
    return ""


MCP = {"type": "mcp", "server_label": "notes", "server_url": "https://notes.example"}
BESIDE = [
    agents.WebSearchTool(),
    agents.FileSearchTool(vector_store_ids=["v"]),
    agents.CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
    agents.ImageGenerationTool(tool_config={"type": "image_generation"}),
    agents.HostedMCPTool(tool_config=MCP),
    agents.LocalShellTool(executor=_shell),
    agents.ShellTool(executor=_shell),
    agents.ApplyPatchTool(editor=SimpleNamespace()),
    agents.ComputerTool(computer=SimpleNamespace()),
]


@pytest.mark.parametrize("tool", BESIDE, ids=lambda tool: type(tool).__name__)
def test_guard_rejects_a_tool_that_is_not_a_function_tool(kit: Kit, tool: Any) -> None:
    with pytest.raises(UsageError, match=f"{type(tool).__name__} is not a function tool"):
        kit.agent(tools=[tool])


def _wiper() -> Any:
    @function_tool
    def wipe_disk(disk: int) -> int:
        return disk

    return wipe_disk


def _unguarded() -> Any:
    return Agent(name="clerk", model=ScriptedModel([DONE]))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt": {"id": "p"}}, "its prompt is stored at the provider"),
        ({"tools": [_unguarded().as_tool("clerk", "")]}, "clerk runs an unguarded agent"),
        ({"handoffs": [handoff(_unguarded())]}, "a handoff leads to an unguarded agent"),
        ({"tools": [_wiper()]}, "wipe_disk: disk"),
    ],
    ids=["prompt", "agent as a tool", "handoff object", "drift"],
)
def test_guard_rejects_options_that_bypass_decisions(kit: Kit, options: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        kit.agent(**options)


def _hand_over(agent: Any) -> None:
    agent.handoffs.append(_unguarded())


@pytest.mark.parametrize(
    "change",
    [lambda agent: agent.tools.append(_wiper()), lambda agent: agent.tools.append(BESIDE[0]), _hand_over],
    ids=["tool", "provider's tool", "agent"],
)
def test_agent_that_was_changed_after_guarding_does_not_run(kit: Kit, change: Callable[[Any], None]) -> None:
    agent = kit.agent(DONE)
    change(agent)

    with pytest.raises(UsageError):
        start(agent)


def test_guard_rejects_a_handoff_with_arguments(kit: Kit) -> None:
    async def note(_: Any, __: Any) -> None: ...

    with pytest.raises(UsageError, match="transfer_to_clerk takes arguments"):
        kit.agent(handoffs=[handoff(kit.agent(name="clerk"), on_handoff=note, input_type=Reason)])


def test_guard_rejects_a_subclass_of_agent(kit: Kit) -> None:
    class Own(Agent):  # type: ignore[misc]
        pass

    with pytest.raises(UsageError, match="cannot guard a Own"):
        guarded_openai_agent(Own(name="kit"), kit.pep, World.session)


def test_policy_sees_the_name_of_a_cloned_agent(kit: Kit) -> None:
    agent = kit.agent(calls(("read_note", NOTE)), DONE)

    start(agent.clone(name="clone"))

    assert kit.callers == [("clone", "read_note")]


class Notes(MCPServer):  # type: ignore[misc]
    """An MCP server that runs in this process with the default settings of the SDK."""

    name = "notes"

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.schema, self.called = schema, list[Any]()

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        shell = Tool(name="open_shell", inputSchema={"type": "object"})
        return [Tool(name="read_note", inputSchema=self.schema), shell]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        self.called.append((tool_name, arguments))
        return CallToolResult(content=[TextContent(type="text", text="noted")])


def test_tools_of_mcp_servers_are_compared_with_the_manifest_and_decided(kit: Kit) -> None:
    server = Notes(SUITE["tools"][0]["schema"])
    agent = kit.agent(calls(("read_note", NOTE), ("open_shell", {})), DONE, tools=[], mcp_servers=[server])

    result = start(agent)

    assert [tool.name for tool in agent.model.first_call.tools] == ["read_note"]
    assert (server.called, outputs(result)[1]) == ([("read_note", NOTE)], "Tool 'open_shell' not found.")
    drifted = kit.agent(DONE, tools=[], mcp_servers=[Notes({"type": "object", "required": ["all"]})])
    start(drifted)
    assert drifted.model.first_call.tools == []
