"""Agents of LlamaIndex run only calls that the adapter allows."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.tools import FunctionTool, QueryEngineTool
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from pdp import Pep
from pdp.adapters.llama_index import guarded_llama_tools
from pdp.errors import UsageError
from pdp.testing.conformance.world import World, run_body
from tests.adapters.llama_index.target import Call, Script
from tests.conformance.local import functions
from tests.support import ROOT

BILLS: list[dict[str, Any]] = [{"payee": "first", "amount": 1}, {"payee": "second", "amount": 2}]
HELD: list[Call] = [("pay_bill", bill, bill["payee"]) for bill in BILLS]
READ: Call = ("read_note", {"note": "a"}, "c1")
READ_A = ("read_note", {"note": "a"})


@pytest.fixture
def tools(world: World, pep: Pep) -> list[Any]:
    return guarded_llama_tools([*functions(world).values()], pep, World.session)


def agent_of(script: Callable[..., Any], tools: list[Any], **options: Any) -> FunctionAgent:
    return FunctionAgent(tools=tools, llm=MockFunctionCallingLLM(response_generator=script), **options)


async def pauses(handler: Any, number: int) -> list[Any]:
    found = []
    async for event in handler.stream_events():
        found += [event] if isinstance(event, InputRequiredEvent) else []
        if len(found) == number:
            break
    return found


async def results(handler: Any) -> dict[str, tuple[str, bool]]:
    """Wait until the run ends, and return the results of the run's calls by call id."""
    events = [event async for event in handler.stream_events()]
    await handler
    found = [each for each in events if isinstance(each, ToolCallResult)]
    return {each.tool_id: (each.tool_output.content, each.tool_output.is_error) for each in found}


def grant(pep: Pep, event: Any) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(event.approval_id, World.approver)


def payee_of(pep: Pep, event: Any) -> str:
    assert pep.approvals is not None
    approval = pep.approvals.get(event.approval_id)
    assert approval is not None
    return str(json.loads(approval.body)["context"]["arguments"]["payee"])


def answer(event: Any, *, approved: bool = True) -> HumanResponseEvent:
    return HumanResponseEvent(approval_id=event.approval_id, approved=approved)


async def test_each_held_call_of_a_turn_runs_when_it_is_granted(world: World, pep: Pep, tools: list[Any]) -> None:
    script = Script([*HELD, READ])
    handler = agent_of(script, tools).run("go")
    asked = {payee_of(pep, each): each for each in await pauses(handler, 2)}

    grant(pep, asked["second"])
    handler.ctx.send_event(answer(asked["second"]))
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult) and event.tool_id == "second":
            break
    after_second = world.ran()
    grant(pep, asked["first"])
    handler.ctx.send_event(answer(asked["first"]))
    await handler

    assert sorted(after_second) == [("pay_bill", BILLS[1]), READ_A]
    assert world.ran() == [*after_second, ("pay_bill", BILLS[0])]
    assert script.told == {
        "first": 'pay_bill got {"payee":"first","amount":1}',
        "second": 'pay_bill got {"payee":"second","amount":2}',
        "c1": 'read_note got {"note":"a"}',
    }


async def test_calls_with_the_same_id_are_held_separately(world: World, pep: Pep, tools: list[Any]) -> None:
    script = Script([(tool, arguments, "same") for tool, arguments, _ in HELD])
    handler = agent_of(script, tools).run("go")
    for event in await pauses(handler, 2):
        grant(pep, event)
        handler.ctx.send_event(answer(event))
    await handler

    assert sorted(world.ran(), key=str) == [("pay_bill", BILLS[0]), ("pay_bill", BILLS[1])]


@pytest.mark.parametrize(
    ("granted", "approved", "told"),
    [
        (True, False, "pay_bill was rejected, so the tool did not run"),
        (False, True, "POLICY_VIOLATION: STEP_UP: approvals.required"),
    ],
)
async def test_held_call_runs_only_after_a_grant_and_a_yes_in_the_application(
    world: World, pep: Pep, tools: list[Any], granted: bool, approved: bool, told: str
) -> None:
    script = Script(HELD[:1])
    handler = agent_of(script, tools).run("go")
    (asked,) = await pauses(handler, 1)
    if granted:
        grant(pep, asked)

    handler.ctx.send_event(answer(asked, approved=approved))
    found = await results(handler)

    assert found["first"] == (script.told["first"], True)
    assert script.told["first"].startswith(told)
    assert world.ran() == []


@pytest.mark.process
# LlamaIndex causes this warning with pydantic 2.14.
@pytest.mark.filterwarnings("ignore:Skipping serialization of known unserializable key")
async def test_paused_run_resumes_in_another_process(world: World) -> None:
    script = Script(HELD[:1])
    with Pep.from_project(world.folder / "pdp.yaml") as pep:
        handler = agent_of(script, guarded_llama_tools([*functions(world).values()], pep, World.session)).run("go")
        (asked,) = await pauses(handler, 1)
        state = {"context": handler.ctx.to_dict(), "approval": asked.approval_id}
        await handler.cancel_run()
        grant(pep, asked)
    (world.folder / "state.json").write_text(json.dumps(state))

    command = [sys.executable, "-m", "tests.adapters.llama_index.resumed", str(world.folder)]
    run = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert run.stdout == 'pay_bill got {"payee":"first","amount":1}'
    assert world.ran() == [("pay_bill", BILLS[0])]


async def test_active_agent_may_call_only_tools_that_the_manifest_pins_for_the_agent_name(world: World) -> None:
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    pins = {"agent:kit": ["read_note"], "lead": [], "clerk": ["read_note"]}
    manifest["agents"] = [{"id": name, "tools": dict.fromkeys(tools, "1.0.0")} for name, tools in pins.items()]
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    handoff = ("handoff", {"to_agent": "clerk", "reason": "it may"}, "h1")
    with Pep.from_files(world.folder / "manifest.yaml") as pep:
        tools = guarded_llama_tools([*functions(world).values()], pep, lambda _: World.session)
        scripts = {"lead": Script([READ], [handoff]), "clerk": Script([(*READ_A, "c2")])}
        agents = [agent_of(script, tools, name=name, description=name) for name, script in scripts.items()]

        found = await results(AgentWorkflow(agents=agents, root_agent="lead").run(user_msg="go"))
        listed = guarded_llama_tools([*functions(world).values()], pep, World.session, agent="clerk")

    assert found["c1"][0].startswith("POLICY_VIOLATION: DENY: manifest.not_pinned")
    assert found["c2"] == ('read_note got {"note":"a"}', False)
    assert world.ran() == [READ_A]
    assert [tool.metadata.name for tool in listed] == ["read_note"]


async def test_held_call_of_an_agent_inside_a_tool_returns_a_text(world: World, pep: Pep, tools: list[Any]) -> None:
    below = Script([READ, *HELD[:1]])

    async def post_note(note: str) -> str:
        return str(await agent_of(below, tools).run(note))

    above = agent_of(
        Script([("post_note", {"note": "go"}, "c2")]), guarded_llama_tools([post_note], pep, World.session)
    )
    found = await results(above.run("go"))

    assert found == {"c2": ("done", False)}
    assert below.told["first"].startswith("POLICY_VIOLATION: STEP_UP: approvals.required")
    assert world.ran() == [READ_A]


# LlamaIndex's ReActAgent causes this warning.
@pytest.mark.filterwarnings("ignore:is_running called from within a step")
@pytest.mark.parametrize("streaming", [True, False])
async def test_all_agent_classes_of_llama_index_can_call_guarded_tools(
    world: World, tools: list[Any], streaming: bool
) -> None:
    def react(messages: Any, **_: Any) -> ChatMessage:
        turn = sum("Observation:" in (each.content or "") for each in messages[1:])
        calls = ['Action: wipe_disk\nAction Input: {"disk": "a"}', 'Action: read_note\nAction Input: {"note": "a"}']
        said = calls[turn] if turn < len(calls) else "Answer: done"
        return ChatMessage(role="assistant", content=f"Thought: I need to use a tool.\n{said}")

    llm = MockFunctionCallingLLM(response_generator=react)
    found = await results(ReActAgent(tools=tools, llm=llm, streaming=streaming).run("go"))

    assert [is_error for _, is_error in found.values()] == [True, False]
    assert world.ran() == [READ_A]


async def test_code_written_by_an_agent_calls_guarded_tools(world: World, pep: Pep) -> None:
    async def pay_bill(payee: str, amount: float) -> str:
        return run_body(world.record, "pay_bill", {"payee": payee, "amount": amount})

    plain = {**functions(world), "pay_bill": pay_bill}
    tools = guarded_llama_tools([*plain.values()], pep, lambda _: World.session)
    own: dict[str, Any] = {tool.metadata.get_name(): tool.real_fn for tool in tools}
    said: list[str] = []

    async def execute(code: str) -> str:
        for call in code.split(";"):
            try:
                value = eval(call, own)  # noqa: S307 - the stand-in model wrote it
                said.append(await value if asyncio.iscoroutine(value) else value)
            except RuntimeError as error:
                said.append(str(error))
        return "ran"

    code = "wipe_disk('a');pay_bill('first', amount=1);read_note('a')"
    turns = [f"<execute>{code}</execute>", "done"]
    llm = MockFunctionCallingLLM(
        response_generator=lambda *_, **__: ChatMessage(role="assistant", content=turns.pop(0))
    )
    await CodeActAgent(execute, tools=tools, llm=llm).run("go")

    assert said[0].startswith("POLICY_VIOLATION: DENY: delegation.exceeds_agent")
    assert said[1].startswith("POLICY_VIOLATION: STEP_UP: approvals.required")
    assert said[2] == 'read_note got {"note":"a"}'
    assert world.ran() == [READ_A]


async def test_guard_accepts_tools_of_other_classes_and_ignores_their_context(world: World, pep: Pep) -> None:
    class Notes(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return run_body(world.record, "ask_notes", {"input": query_str})

    async def read_note(ctx: Context, note: str, page: float | None = None, filter: Any = None) -> str:  # noqa: A002
        await ctx.store.set("seen", note)
        return run_body(world.record, "read_note", {"note": note})

    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    schema = {"type": "object", "required": ["input"], "properties": {"input": {"type": "string", "maxLength": 9}}}
    manifest["tools"].append({**manifest["tools"][0], "name": "ask_notes", "schema": schema})
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    with Pep.from_files(world.folder / "manifest.yaml") as wider:
        notes = QueryEngineTool.from_defaults(Notes(), name="ask_notes", description="")
        tools = guarded_llama_tools([notes, read_note], wider, World.session)
        ask: list[Call] = [("ask_notes", {"input": "b"}, "c2"), ("ask_notes", {"input": "much too long"}, "c3")]
        handler = agent_of(Script([READ, *ask]), tools).run("go")
        found = await results(handler)
        seen = await handler.ctx.store.get("seen")

    assert found["c2"] == ('ask_notes got {"input":"b"}', False)
    assert found["c3"][0].startswith("INVALID_PAYLOAD")
    assert sorted(world.ran()) == [("ask_notes", {"input": "b"}), READ_A]
    assert (seen, tools[1].requires_context) == ("a", True)


async def test_guarded_tool_can_wait_for_an_event(world: World, pep: Pep) -> None:
    async def post_note(ctx: Context, note: str) -> str:
        said = await ctx.wait_for_event(HumanResponseEvent, InputRequiredEvent(prefix="Sure?"))
        return run_body(world.record, "read_note", {"note": said.response})

    script = Script([("post_note", {"note": "a"}, "c1")])
    handler = agent_of(script, guarded_llama_tools([post_note], pep, World.session)).run("go")
    (asked,) = await pauses(handler, 1)
    handler.ctx.send_event(HumanResponseEvent(response="yes"))
    await handler

    assert (asked.prefix, script.told) == ("Sure?", {"c1": 'read_note got {"note":"yes"}'})


def test_guard_rejects_tools_that_differ_from_the_manifest(pep: Pep) -> None:
    def read_note(note: int) -> str:
        return str(note)

    with pytest.raises(UsageError, match="read_note: note: type string became integer"):
        guarded_llama_tools([FunctionTool.from_defaults(read_note)], pep, World.session)


async def test_session_function_gets_the_state_of_the_run(world: World, pep: Pep) -> None:
    def session(state: dict[str, Any]) -> dict[str, Any]:
        return {**World.session, "request_id": state["request_id"]}

    agent = agent_of(Script([READ]), guarded_llama_tools([*functions(world).values()], pep, session, "agent:kit"))
    context = Context(agent)
    await context.store.set("request_id", "r-7")
    await agent.run("go", ctx=context)

    dispatched = pep.audit.events[0]  # type: ignore[attr-defined]
    known = {name: dispatched[name] for name in ("request_id", "run_id", "tool_call_id", "agent")}
    run_id = await context.store.get("pdp.run_id")
    assert known == {"request_id": "r-7", "run_id": run_id, "tool_call_id": "c1", "agent": "agent:kit"}
