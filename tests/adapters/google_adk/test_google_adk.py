"""Runs of Google's Agent Development Kit (ADK) execute only calls that the plugin allows."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.adk.agents import LiveRequestQueue, LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.code_executors import UnsafeLocalCodeExecutor
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.google_search_tool import google_search
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel

from pdp import Approvals, Pep
from pdp.adapters.google_adk import AdkPlugin
from pdp.testing.conformance.world import World
from tests.adapters.google_adk.target import Run, ScriptedLlm, opened_run, scripted
from tests.conformance.local import functions
from tests.support import ROOT

Call = tuple[str, dict[str, Any], str]
BILLS: list[dict[str, Any]] = [{"payee": "first", "amount": 1}, {"payee": "second", "amount": 2}]
HELD: list[Call] = [("pay_bill", bill, bill["payee"]) for bill in BILLS]
READ: Call = ("read_note", {"note": "a"}, "c1")
GOT = {"result": 'read_note got {"note":"a"}'}
PAID = {"result": 'pay_bill got {"payee":"first","amount":1}'}
STEP_UP = "POLICY_VIOLATION: STEP_UP: approvals.required"
REJECTED = {"error": "a person rejected this call, so the tool did not run"}


def agent_of(world: World, name: str = "kit", **options: Any) -> LlmAgent:
    return LlmAgent(**{"name": name, "model": ScriptedLlm(), "tools": [*functions(world).values()], **options})


async def run_of(pep: Pep, agent: LlmAgent, session: Any = World.session, service: Any = None) -> Run:
    app = App(name="kit", root_agent=agent, plugins=[AdkPlugin(pep, session)])
    return await opened_run(Runner(app=app, session_service=service or InMemorySessionService()), "s1")


def grant(pep: Pep, run: Run, call_id: str) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(run.waits[call_id][1]["approval_id"], World.approver)


async def test_each_held_call_of_a_turn_runs_when_it_is_granted(world: World, pep: Pep) -> None:
    run = await run_of(pep, agent_of(world))

    await run.propose(*HELD, READ)
    at_pause = world.ran()
    grant(pep, run, "second")
    await run.resume("second")
    after_second = world.ran()
    grant(pep, run, "first")
    await run.resume("first")

    assert at_pause == [("read_note", {"note": "a"})]
    assert after_second == [*at_pause, ("pay_bill", BILLS[1])]
    assert world.ran() == [*after_second, ("pay_bill", BILLS[0])]
    assert run.told == {"c1": GOT, "first": PAID, "second": {"result": 'pay_bill got {"payee":"second","amount":2}'}}


async def test_confirmation_in_adk_without_a_grant_returns_an_error_and_the_model_may_repeat_the_call(
    world: World, pep: Pep
) -> None:
    run = await run_of(pep, agent_of(world))

    await run.propose(*HELD[:1])
    first = run.waits["first"][1]
    await run.resume("first", payload={**first, "approved": True, "always": True})
    told, waits = run.told["first"], run.waits
    await run.propose(("pay_bill", BILLS[0], "again"))
    again = run.waits["again"][1]
    grant(pep, run, "again")
    await run.resume("again")

    assert (told["error"].startswith(STEP_UP), waits) == (True, {})
    assert again == first
    assert (world.ran(), run.told["again"]) == ([("pay_bill", BILLS[0])], PAID)


async def test_rejected_call_does_not_run_even_if_granted(world: World, pep: Pep) -> None:
    model = ScriptedLlm()
    run = await run_of(pep, agent_of(world, model=model))

    await run.propose(*HELD[:1])
    assert len(model.offered) == 1
    grant(pep, run, "first")
    await run.resume("first", confirmed=False)

    assert (world.ran(), run.told["first"]) == ([], REJECTED)


@pytest.mark.process
async def test_paused_run_resumes_in_another_process(world: World) -> None:
    with Pep.from_project(world.folder / "pdp.yaml") as pep:
        service = SqliteSessionService(str(world.folder / "sessions.db"))
        run = await run_of(pep, agent_of(world), service=service)
        await run.propose(*HELD[:1])
        grant(pep, run, "first")
        await run.runner.close()

    command = [sys.executable, "-m", "tests.adapters.google_adk.resumed", str(world.folder), run.waits["first"][0]]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert json.loads(done.stdout) == {"first": PAID}
    assert world.ran() == [("pay_bill", BILLS[0])]


class Note(BaseModel):
    """The arguments of an agent that is used as the tool `read_note`."""

    note: str
    page: float | None = None
    filter: Any = None


def transferred(below: LlmAgent) -> dict[str, Any]:
    return {"sub_agents": [below]}


def as_tool(below: LlmAgent) -> dict[str, Any]:
    return {"tools": [AgentTool(below)]}


@pytest.mark.parametrize(
    ("first", "mode", "above"),
    [
        (("transfer_to_agent", {"agent_name": "read_note"}, "t1"), "chat", transferred),
        (("read_note", {"note": "[]"}, "t1"), "single_turn", transferred),
        (("read_note", {"note": "[]"}, "t1"), "task", transferred),
        (("read_note", {"note": "[]"}, "t1"), None, as_tool),
    ],
    ids=["transfer", "single turn", "task", "agent as a tool"],
)
# AgentTool of ADK passes this deprecated argument, not the test.
@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")
async def test_sub_agent_may_call_only_tools_that_the_manifest_pins_for_the_agent_name(
    world: World, first: Call, mode: Any, above: Callable[[LlmAgent], dict[str, Any]]
) -> None:
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    pins = {"agent:kit": ["read_note", "pay_bill"], "lead": ["read_note"], "read_note": ["read_note", "pay_bill"]}
    manifest["agents"] = [{"id": name, "tools": dict.fromkeys(tools, "1.0.0")} for name, tools in pins.items()]
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    below = agent_of(world, "read_note", mode=mode, input_schema=None if mode == "chat" else Note)
    inner: list[Call] = [READ, *HELD[:1], ("wipe_disk", {"disk": "a"}, "w1")]
    with Pep.from_files(world.folder / "manifest.yaml", approvals=Approvals()) as pinned:
        run = await run_of(pinned, agent_of(world, "lead", **{"tools": [], **above(below)}))
        if mode == "chat":
            await run.propose(first)
            await run.propose(*inner)
        else:
            await run.propose((first[0], {"note": json.dumps(inner)}, first[2]))
        at_pause, waits = world.ran(), [*run.waits]
        for call_id in waits:
            grant(pinned, run, call_id)
            await run.resume(call_id)
        calls = [event for event in pinned.audit.events if event["type"].endswith(".dispatch")]  # type: ignore[attr-defined]

    # A run inside an AgentTool cannot be resumed, so the model of the inner agent gets a text that names the approval.
    assert waits == ([] if mode is None else ["first"])
    assert at_pause == [("read_note", {"note": "a"})]
    assert world.ran() == [*at_pause, *[("pay_bill", BILLS[0])] * len(waits)]
    assert {(event["tool_name"], event["agent"], event["run_id"]) for event in calls} - {
        ("read_note", "lead", "s1")
    } == {(name, "read_note", "s1") for name in ("read_note", "pay_bill", "wipe_disk")}


async def test_call_in_a_streaming_run_is_decided_once(world: World, pep: Pep) -> None:
    run = await run_of(pep, agent_of(world))

    await run.propose(READ, *HELD[:1], run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    grant(pep, run, "first")
    await run.resume("first")

    assert world.ran() == [("read_note", {"note": "a"}), ("pay_bill", BILLS[0])]
    assert any(event.partial for event in run.events)


class Connection(BaseLlmConnection):
    """A live connection to a scripted model."""

    def __init__(self) -> None:
        self.responses: asyncio.Queue[LlmResponse] = asyncio.Queue()

    async def send_content(self, content: types.Content) -> None:
        parts = [types.Part(function_call=call) for call in scripted(content)]
        response = types.Content(role="model", parts=parts or [types.Part(text="done")])
        await self.responses.put(LlmResponse(content=response, turn_complete=not parts))

    async def receive(self) -> AsyncGenerator[LlmResponse, None]:
        while True:
            yield await self.responses.get()

    async def send_history(self, history: list[types.Content]) -> None: ...
    async def send_realtime(self, blob: types.Blob) -> None: ...
    async def close(self) -> None: ...


class LiveLlm(ScriptedLlm):
    """A scripted model that supports live connections."""

    @asynccontextmanager
    async def connect(self, llm_request: LlmRequest) -> AsyncIterator[Connection]:
        yield Connection()


async def test_held_call_in_a_live_run_returns_a_text(world: World, pep: Pep) -> None:
    async def fetch_page(url: str, limit: float) -> AsyncGenerator[str, None]:
        yield functions(world)["fetch_page"](url, limit)

    tools = [*functions(world).values(), fetch_page]
    agent = agent_of(world, model=LiveLlm(), tools=[tool for tool in tools if tool.__name__ != "ping_host"])
    run, queue = await run_of(pep, agent), LiveRequestQueue()
    text = json.dumps([READ, *HELD[:1], ("fetch_page", {"url": "a", "limit": 5}, "f1")])
    queue.send_content(types.Content(role="user", parts=[types.Part(text=text)]))
    options = {"live_request_queue": queue, "run_config": RunConfig(response_modalities=[types.Modality.TEXT])}
    told: dict[str | None, Any] = {}
    async for event in run.runner.run_live(user_id="person-1", session_id="s1", **options):
        told |= {each.id: each.response for each in event.get_function_responses()}
        assert event.actions.requested_tool_confirmations == {}
        if event.turn_complete:
            break

    assert (told["c1"], told["first"]["error"].startswith(STEP_UP)) == (GOT, True)
    assert told["f1"] == {
        "error": "TOOL_EXECUTION_FAILED: tools that stream in a live run are not supported, so the tool did not start"
    }
    assert world.ran() == [("read_note", {"note": "a"})]


class Prefixed(BaseToolset):
    """A toolset of a server, to whose tool names ADK adds a prefix."""

    def __init__(self, world: World) -> None:
        super().__init__(tool_name_prefix="kit")
        self.tool = FunctionTool(functions(world)["read_note"])

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [self.tool]


async def test_policy_sees_the_new_name_of_a_renamed_tool(world: World, pep: Pep) -> None:
    agent = agent_of(world, tools=[Prefixed(world)])
    run = await run_of(pep, agent)

    await run.propose(("kit_read_note", *READ[1:]))

    assert run.told["c1"]["error"].startswith("INVALID_TOOL_NAME")
    assert (agent.model.offered[-1], world.ran()) == ([], [])  # type: ignore[union-attr]


def meddling(tool: Any, args: dict[str, Any], tool_context: Any) -> dict[str, Any] | None:
    """A callback of the agent that denies one note, and changes the page in the calls for all other notes."""
    if args["note"] == "forbidden":
        return {"error": "not this note"}
    args["page"] = 2
    return None


async def test_agent_callbacks_can_deny_or_change_calls_before_the_decision(world: World, pep: Pep) -> None:
    run = await run_of(pep, agent_of(world, before_tool_callback=meddling))

    await run.propose(READ, ("read_note", {"note": "forbidden"}, "c2"))

    assert world.ran() == [("read_note", {"note": "a", "page": 2})]
    assert run.told["c2"] == {"error": "not this note"}


async def test_tool_that_requires_confirmation_runs_only_after_the_confirmation(world: World, pep: Pep) -> None:
    made = functions(world)
    tools = [FunctionTool(made[name], require_confirmation=True) for name in ("read_note", "pay_bill", "wipe_disk")]
    run = await run_of(pep, agent_of(world, tools=tools))

    await run.propose(READ, ("read_note", {"note": "b"}, "c2"), *HELD[:1], ("wipe_disk", {"disk": "a"}, "w1"))
    at_pause, waits = world.ran(), {*run.waits}
    grant(pep, run, "first")
    await run.propose(("pay_bill", BILLS[0], "again"))
    await run.resume("again")
    await run.resume("c1")
    await run.resume("c2", confirmed=False)

    # ADK asks the user to confirm only calls that the policy does not deny.
    assert (at_pause, waits) == ([], {"c1", "c2", "first"})
    assert world.ran() == [("pay_bill", BILLS[0]), ("read_note", {"note": "a"})]
    assert (run.told["c1"], run.told["again"], run.told["c2"]) == (GOT, PAID, REJECTED)


async def test_long_running_tool_runs_although_the_model_gets_its_result_later(world: World, pep: Pep) -> None:
    def read_note(note: str, page: float | None = None, filter: Any = None) -> None:  # noqa: A002 - the tool's argument
        functions(world)["read_note"](note)

    run = await run_of(pep, agent_of(world, tools=[LongRunningFunctionTool(read_note)]))

    await run.propose(READ)

    assert (world.ran(), run.told) == ([("read_note", {"note": "a"})], {})


def read_note(note: int) -> str:
    """Has the name of a tool in the manifest, but another parameter type."""
    return str(note)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"code_executor": UnsafeLocalCodeExecutor()}, "agent kit has a code executor"),
        ({"tools": [google_search]}, "a tool that the model's provider runs"),
        ({"tools": [AgentTool(LlmAgent(name="read_note"), include_plugins=False)]}, "without plugins"),
    ],
    ids=["code executor", "tool of the provider", "agent without plugins"],
)
async def test_run_ends_if_an_agent_has_tools_that_bypass_the_decision(
    world: World, pep: Pep, options: dict[str, Any], message: str
) -> None:
    run = await run_of(pep, agent_of(world, **{"model": ScriptedLlm(model="gemini-3.5-flash"), **options}))

    with pytest.raises(RuntimeError, match=message):
        await run.propose(READ)

    assert world.ran() == []


async def test_agent_does_not_get_a_tool_that_differs_from_the_manifest(
    world: World, pep: Pep, caplog: pytest.LogCaptureFixture
) -> None:
    run = await run_of(pep, agent_of(world, tools=[read_note]))

    await run.propose(READ)

    assert world.ran() == []
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pdp.adapters"]
    assert "read_note: note: type string became integer" in line


async def test_session_function_gets_the_context_of_adk(world: World, pep: Pep) -> None:
    def session(context: Any) -> dict[str, Any]:
        names = {"person-1": {**World.session["claims"]}}
        return {"claims": names[context.user_id], "request_id": f"{context.session.id}-{context.invocation_id}"}

    run = await run_of(pep, agent_of(world), session)
    await run.propose(READ)
    stranger = await run.runner.session_service.create_session(app_name="kit", user_id="person-2", session_id="s2")
    message = types.Content(role="user", parts=[types.Part(text=json.dumps([READ]))])
    options = {"user_id": "person-2", "session_id": stranger.id, "new_message": message}
    told = [each async for event in run.runner.run_async(**options) for each in event.get_function_responses()]

    dispatched, ended = pep.audit.events  # type: ignore[attr-defined]
    assert {dispatched["request_id"], ended["request_id"]} == {f"s1-{run.events[0].invocation_id}"}
    assert told[0].response == {"error": "pep.internal_error: the call could not be decided, so the tool did not run"}
    assert world.ran() == [("read_note", {"note": "a"})]
