"""Strands agents run only calls that the plugin allows."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent
from strands.middleware import ExecuteToolStage
from strands.multiagent import Swarm
from strands.session import FileSessionManager

from pdp import Approvals, Pep
from pdp.adapters.guard.guard import LEFT_OUT
from pdp.adapters.strands import StrandsPlugin
from pdp.errors import UsageError
from pdp.testing.conformance.world import World, run_body
from tests.adapters.strands.target import Call, Run, ScriptedModel, agent_of, tools_of
from tests.support import ROOT

BILLS: list[dict[str, Any]] = [{"payee": "first", "amount": 1}, {"payee": "second", "amount": 2}]
HELD: list[Call] = [("pay_bill", bill, bill["payee"]) for bill in BILLS]
READ: Call = ("read_note", {"note": "a"}, "c1")
GOT = ("success", 'read_note got {"note":"a"}')
PAID = ("success", 'pay_bill got {"payee":"first","amount":1.0}')
STEP_UP = "POLICY_VIOLATION: STEP_UP: approvals.required"
REJECTED = ("error", "a person rejected this call, so the tool did not run")


@pytest.fixture
def agent(world: World, pep: Pep) -> Callable[..., Agent]:
    """Return a function that creates an agent with the tools of the world."""

    def made(session: Any = World.session, pep: Pep = pep, **options: Any) -> Agent:
        return agent_of(StrandsPlugin(pep, session), **{"tools": tools_of(world, pep), **options})

    return made


def grant(pep: Pep, interrupt: Any) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(interrupt.reason["approval_id"], World.approver)


async def test_each_held_call_of_a_turn_runs_when_it_is_granted(world: World, pep: Pep, agent: Any) -> None:
    run = Run(agent())

    await run.propose(*HELD, READ)
    at_pause = world.ran()
    grant(pep, run.waits["second"])
    await run.resume("second")
    after_second = world.ran()
    grant(pep, run.waits["first"])
    await run.resume("first")

    assert at_pause == [("read_note", {"note": "a"})]
    assert after_second == [*at_pause, ("pay_bill", BILLS[1])]
    assert world.ran() == [*after_second, ("pay_bill", BILLS[0])]
    assert run.told == {
        "c1": GOT, "first": PAID, "second": ("success", 'pay_bill got {"payee":"second","amount":2.0}')
    }  # fmt: skip


async def test_confirmation_in_strands_without_a_grant_returns_an_error_and_the_model_may_repeat_the_call(
    world: World, pep: Pep, agent: Any
) -> None:
    run = Run(agent())

    await run.propose(*HELD[:1])
    first = run.waits["first"].reason
    result = await run.resume("first", response="yes")
    told = run.told["first"]
    await run.propose(("pay_bill", BILLS[0], "again"))
    again = run.waits["again"].reason
    grant(pep, run.waits["again"])
    await run.resume("again")

    assert (result.stop_reason, told[0], told[1].startswith(STEP_UP)) == ("end_turn", "error", True)
    assert again == first
    assert (world.ran(), run.told["again"]) == ([("pay_bill", BILLS[0])], PAID)


@pytest.mark.parametrize("response", [False, "no", {"approved": True}, "always"])
async def test_granted_call_does_not_run_without_a_yes_in_the_application(
    world: World, pep: Pep, agent: Any, response: Any
) -> None:
    run = Run(agent())

    await run.propose(*HELD[:1])
    grant(pep, run.waits["first"])
    await run.resume("first", response=response)

    assert (world.ran(), run.told["first"]) == ([], REJECTED)


@pytest.mark.process
async def test_paused_run_resumes_in_another_process(world: World, agent: Any) -> None:
    with Pep.from_project(world.folder / "pdp.yaml") as pep:
        manager = FileSessionManager("s1", storage_dir=str(world.folder / "sessions"))
        run = Run(agent(pep=pep, session_manager=manager))
        await run.propose(*HELD[:1])
        grant(pep, run.waits["first"])

    command = [sys.executable, "-m", "tests.adapters.strands.resumed", str(world.folder), run.waits["first"].id]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert json.loads(done.stdout) == {"first": [*PAID]}
    assert world.ran() == [("pay_bill", BILLS[0])]


@pytest.fixture
def pinned(world: World) -> Iterator[Pep]:
    """Open an enforcement point whose manifest pins agents and declares the agent `clerk` as a tool."""
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    asks = {"type": "object", "required": ["input"], "properties": {"input": {"type": "string", "maxLength": 999}}}
    manifest["tools"].append({**manifest["tools"][0], "name": "clerk", "schema": asks})
    pins = {"agent:kit": ["clerk", "read_note", "pay_bill"], "lead": ["clerk"], "clerk": ["read_note", "pay_bill"]}
    manifest["agents"] = [{"id": name, "tools": dict.fromkeys(tools, "1.0.0")} for name, tools in pins.items()]
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    with Pep.from_files(world.folder / "manifest.yaml", approvals=Approvals()) as opened:
        yield opened


def whose(context: Any) -> Any:
    return {"officer": World.session}[context.invocation_state["user"]]


INNER: list[Call] = [READ, *HELD[:1], ("wipe_disk", {"disk": "a"}, "w1")]


async def test_agent_used_as_a_tool_has_pinned_tools_and_pauses_the_run(world: World, pinned: Pep, agent: Any) -> None:
    clerk = agent(whose, pinned, name="clerk")
    lead = agent(whose, pinned, name="lead", tools=[clerk.as_tool(), *tools_of(world, pinned)])
    run = Run(lead, user="officer")

    result = await run.propose(("clerk", {"input": json.dumps(INNER)}, "a1"), ("read_note", {"note": "b"}, "c2"))
    at_pause, (held,) = world.ran(), result.interrupts
    grant(pinned, held)
    await run.answer({held.id: True})

    events = pinned.audit.events  # type: ignore[attr-defined]
    dispatched = {(e["tool_name"], e["agent"], e["run_id"]) for e in events if e["type"].endswith("dispatch")}
    assert (lead.model.offered[0], clerk.model.offered[0]) == (["clerk"], ["read_note", "pay_bill"])
    assert at_pause == [("read_note", {"note": "a"})]
    assert world.ran() == [*at_pause, ("pay_bill", BILLS[0])]
    assert run.told["c2"][1].startswith("POLICY_VIOLATION: DENY: manifest.not_pinned")
    assert dispatched == {
        *((name, "clerk", lead.session_id) for name in ("read_note", "pay_bill", "wipe_disk")),
        *((name, "lead", lead.session_id) for name in ("read_note", "clerk")),
    }


async def test_calls_of_agents_in_a_swarm_are_decided_and_held_calls_pause_the_swarm(
    world: World, pinned: Pep, agent: Any
) -> None:
    swarm = Swarm([agent(whose, pinned, name="lead"), agent(whose, pinned, name="clerk")])
    calls = [("handoff_to_agent", {"agent_name": "clerk", "message": json.dumps(INNER)}, "h1")]

    paused = await swarm.invoke_async(json.dumps(calls), invocation_state={"user": "officer"})
    at_pause, (held,) = world.ran(), paused.interrupts
    grant(pinned, held)
    answer: Any = [{"interruptResponse": {"interruptId": held.id, "response": True}}]
    ended = await swarm.invoke_async(answer, invocation_state={"user": "officer"})

    assert at_pause == [("read_note", {"note": "a"})]
    assert (ended.status.name, world.ran()) == ("COMPLETED", [*at_pause, ("pay_bill", BILLS[0])])


async def test_direct_tool_calls_of_the_application_have_no_trusted_state(world: World, pep: Pep, agent: Any) -> None:
    own, stranger = agent(), agent(whose)

    results = [
        own.tool.read_note(note="a"),
        own.tool.pay_bill(payee="first", amount=1),
        stranger.tool.read_note(note="a", user="officer"),
    ]

    assert world.ran() == [("read_note", {"note": "a"})]
    texts = [result["content"][0]["text"] for result in results]
    assert (texts[0], texts[1].startswith(STEP_UP), texts[2]) == (
        GOT[1], True, "pep.internal_error: the call could not be decided, so the tool did not run"
    )  # fmt: skip


async def test_framework_gets_streamed_events_and_interrupts_of_a_tool(world: World, pep: Pep, agent: Any) -> None:
    schemas = {name: {"json": entry.schema_} for name, entry in pep.manifest.tools.items()}

    @tool(inputSchema=schemas["read_note"])
    async def read_note(note: str) -> AsyncGenerator[str, None]:
        """Stream."""
        yield "half"
        yield run_body(world.record, "read_note", {"note": note})

    @tool(inputSchema=schemas["fetch_page"], context=True)
    def fetch_page(url: str, limit: float, tool_context: ToolContext) -> str:
        """Ask."""
        url = tool_context.interrupt("which", reason="page?")
        return run_body(world.record, "fetch_page", {"url": url, "limit": limit})

    run = Run(agent(tools=[read_note, fetch_page]))
    proposed = json.dumps([READ, ("fetch_page", {"url": "a", "limit": 99}, "f1")])
    streamed = [event async for event in run.agent.stream_async(proposed)]
    (asked,) = streamed[-1]["result"].interrupts
    await run.answer({asked.id: "b"})

    assert [event["tool_stream_event"]["data"] for event in streamed if "tool_stream_event" in event] == [
        "half",
        GOT[1],
    ]
    assert (asked.name, asked.reason) == ("which", "page?")
    assert world.ran() == [("read_note", {"note": "a"}), ("fetch_page", {"url": "b", "limit": 10})]
    assert run.told == {"c1": GOT, "f1": ("success", 'fetch_page got {"url":"b","limit":10.0}')}


async def test_calls_that_hooks_redirect_or_retry_are_decided(world: World, pep: Pep, agent: Any) -> None:
    own = agent()
    tries: list[str] = []

    def choose(event: BeforeToolCallEvent) -> None:
        if event.tool_use["input"] == {"note": "b"}:
            event.selected_tool = own.tool_registry.registry["wipe_disk"]
            event.tool_use["input"] = {"disk": "a"}

    def retry(event: AfterToolCallEvent) -> None:
        tries.append(event.tool_use["toolUseId"])
        event.retry = tries.count("c1") == 1

    own.add_hook(choose)
    own.add_hook(retry)
    run = Run(own)
    await run.propose(READ, ("read_note", {"note": "b"}, "c2"))

    decided = [event["tool_name"] for event in pep.audit.events if event["type"].endswith("dispatch")]  # type: ignore[attr-defined]
    assert (sorted(tries), sorted(decided)) == (["c1", "c1", "c2"], ["read_note", "read_note", "wipe_disk"])
    assert world.ran() == [("read_note", {"note": "a"})] * 2
    assert run.told["c2"][1].startswith("POLICY_VIOLATION: DENY")


async def test_plugin_rejects_middleware_that_runs_between_the_plugin_and_the_tool(world: World, agent: Any) -> None:
    async def changes(context: Any, next_fn: Any) -> Any:
        async for event in next_fn(context.replace(tool_use={**context.tool_use, "input": {"note": "b"}})):
            yield event

    own = agent()
    own.add_middleware(ExecuteToolStage, changes)
    run = Run(own)
    await run.propose(READ)

    assert (run.told["c1"], world.ran()) == (("error", LEFT_OUT.text), [])


async def test_tool_that_a_hook_substitutes_is_compared_with_the_manifest(world: World, agent: Any) -> None:
    @tool(name="read_note")
    def other(note: int) -> str:
        """Has the name of a tool in the manifest, but another parameter type."""
        raise AssertionError(note)

    def choose(event: BeforeToolCallEvent) -> None:
        event.selected_tool = other

    own = agent()
    own.add_hook(choose)
    run = Run(own)
    await run.propose(READ)

    assert (run.told["c1"], world.ran()) == (("error", LEFT_OUT.text), [])


async def test_result_with_error_status_is_a_failure_and_objects_are_validated(world: World, agent: Any) -> None:
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    manifest["tools"][0]["result_schema"] = {"type": "object", "required": ["page"]}
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    results = {"a": {"page": 1}, "b": {"status": "error", "content": [{"text": "no such note"}]}, "c": "{no object"}

    @tool(inputSchema={"json": manifest["tools"][0]["schema"]})
    def read_note(note: str) -> Any:
        """Read."""
        return results[note]

    with Pep.from_files(world.folder / "manifest.yaml", approvals=Approvals()) as strict:
        run = Run(agent(pep=strict, tools=[read_note]))
        await run.propose(*(("read_note", {"note": note}, note) for note in results))

    assert run.told["a"] == ("success", '{"page": 1}')
    assert run.told["b"] == ("error", "TOOL_EXECUTION_FAILED: no such note")
    assert run.told["c"][0] == "error"


class Answer(BaseModel):
    """The structured output that the model should return."""

    text: str


class Answering(ScriptedModel):
    """A model that returns a structured output."""

    async def stream(self, messages: Any, *more: Any, **options: Any) -> AsyncGenerator[Any, None]:
        message = {"role": "user", "content": [{"text": '[["Answer", {"text": "x"}, "o1"]]'}]}
        async for event in super().stream([message], *more, **options):
            yield event


async def test_guarded_agent_returns_structured_output(agent: Any) -> None:
    result = await agent(model=Answering()).invoke_async("go", structured_output_model=Answer)

    assert result.structured_output == Answer(text="x")


def test_plugin_rejects_tools_that_bypass_decisions(world: World, pinned: Pep, agent: Any) -> None:
    @tool
    def read_note(note: int) -> str:
        """Has the name of a tool in the manifest, but another parameter type."""
        return str(note)

    with pytest.raises(UsageError, match="read_note: note: type string became integer"):
        agent(tools=[read_note])
    with pytest.raises(UsageError, match="tool clerk is an agent without a StrandsPlugin"):
        agent(pep=pinned, tools=[agent_of(tools=[], name="clerk").as_tool()])
