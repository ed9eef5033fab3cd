"""Agents of Microsoft's Agent Framework run only calls that the adapter allows."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    Content,
    ContextProvider,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
    ToolApprovalMiddleware,
    UserInputRequiredException,
    create_always_approve_tool_response,
)

from pdp import Approvals, Pep
from pdp.adapters.agent_framework import agent_framework_middleware
from pdp.testing.conformance.world import World, run_body
from tests.adapters.agent_framework.target import Call, ScriptedModel
from tests.conformance.local import functions
from tests.support import ROOT

BILLS: list[dict[str, Any]] = [{"payee": "first", "amount": 1}, {"payee": "second", "amount": 2}]
HELD: list[Call] = [("pay_bill", bill, bill["payee"]) for bill in BILLS]
READ: Call = ("read_note", {"note": "a"}, "c1")


@pytest.fixture
def agent_of(world: World, pep: Pep) -> Callable[..., Any]:
    """Return a function that creates an agent with the tools of the world."""

    def made(model: ScriptedModel, *, session: Any = World.session, beside: Any = (), **options: Any) -> Any:
        middleware = [*agent_framework_middleware(pep, session), *beside]
        return Agent(model, **{"tools": [*functions(world).values()], "middleware": middleware, **options})

    return made


def grant(pep: Pep, request: Any) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(request.additional_properties["approval"]["approval_id"], World.approver)


def answer(*requests: Any, approved: bool = True) -> Any:
    return Message("user", [request.to_function_approval_response(approved) for request in requests])


async def test_each_held_call_of_a_turn_runs_when_it_is_granted(world: World, pep: Pep, agent_of: Any) -> None:
    model, session = ScriptedModel([*HELD, READ]), AgentSession()
    agent = agent_of(model)

    first, second = (await agent.run("go", session=session)).user_input_requests
    at_pause = world.ran()
    grant(pep, second)
    await agent.run(answer(first, second), session=session)
    told, after_second = model.results(), world.ran()
    grant(pep, first)
    model.turns = [[(*HELD[0][:2], "again")]]
    await agent.run("once more", session=session)

    assert at_pause == [("read_note", {"note": "a"})]
    assert after_second == [*at_pause, ("pay_bill", BILLS[1])]
    assert (told["c1"], told["second"]) == (
        'read_note got {"note":"a"}',
        'pay_bill got {"payee":"second","amount":2.0}',
    )
    assert told["first"].startswith("Error: POLICY_VIOLATION: STEP_UP")
    assert world.ran() == [*after_second, ("pay_bill", BILLS[0])]
    assert model.results()["again"] == 'pay_bill got {"payee":"first","amount":1.0}'


async def test_call_rejected_by_the_application_does_not_run(world: World, pep: Pep, agent_of: Any) -> None:
    model, session = ScriptedModel(HELD[:1]), AgentSession()
    agent = agent_of(model)
    (request,) = (await agent.run("go", session=session)).user_input_requests
    grant(pep, request)

    await agent.run(answer(request, approved=False), session=session)

    assert world.ran() == []
    assert "rejected" in model.results()["first"]


async def test_user_is_asked_about_the_corrected_arguments(world: World, agent_of: Any) -> None:
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    few = {"id": "FEW", "rule": "At most 9.", "check": "call.amount <= 9", "correct": {"set": {"amount": 9}}}
    next(tool for tool in manifest["tools"] if tool["name"] == "pay_bill")["invariants"] = [few]
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    model, session = ScriptedModel([("pay_bill", {"payee": "a", "amount": 500}, "c1")]), AgentSession()
    with Pep.from_files(world.folder / "manifest.yaml", approvals=Approvals()) as pep:
        agent = agent_of(model, middleware=agent_framework_middleware(pep, World.session))

        (request,) = (await agent.run("go", session=session)).user_input_requests
        grant(pep, request)
        await agent.run(answer(request), session=session)

    assert request.function_call.arguments == {"payee": "a", "amount": 9}
    assert world.ran() == [("pay_bill", {"payee": "a", "amount": 9})]


async def test_approval_in_the_framework_does_not_grant_the_call(world: World, agent_of: Any) -> None:
    model, session = ScriptedModel(HELD[:1], (), [(*HELD[0][:2], "again")]), AgentSession()
    agent = agent_of(model, beside=[ToolApprovalMiddleware()])
    (request,) = (await agent.run("go", session=session)).user_input_requests

    always = create_always_approve_tool_response(request)
    await agent.run(Message("user", [always]), session=session)
    told = model.results()["first"]
    await agent.run("once more", session=session)

    assert world.ran() == []
    assert told.startswith("Error: POLICY_VIOLATION: STEP_UP: approvals.required")
    assert model.results()["again"].startswith("Error: POLICY_VIOLATION: STEP_UP: approvals.required")


@pytest.mark.process
async def test_paused_run_resumes_in_another_process(world: World) -> None:
    model, session = ScriptedModel(HELD[:1]), AgentSession()
    with Pep.from_project(world.folder / "pdp.yaml") as pep:
        agent = Agent(
            model,
            tools=[*functions(world).values()],
            middleware=agent_framework_middleware(pep, World.session),
        )
        (request,) = (await agent.run("go", session=session)).user_input_requests
        grant(pep, request)
    state = {"session": session.to_dict(), "request": request.to_dict()}
    (world.folder / "state.json").write_text(json.dumps(state))

    command = [sys.executable, "-m", "tests.adapters.agent_framework.resumed", str(world.folder)]
    run = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True, text=True)

    assert run.stdout == 'pay_bill got {"payee":"first","amount":1.0}'
    assert world.ran() == [("pay_bill", BILLS[0])]


async def test_held_call_in_a_run_without_a_session_returns_a_text(world: World, pep: Pep, agent_of: Any) -> None:
    model = ScriptedModel(HELD[:1])
    response = await agent_of(model).run("go")

    assert response.user_input_requests == []
    assert model.results()["first"].startswith("Error: POLICY_VIOLATION: STEP_UP: approvals.required")
    assert world.ran() == []


async def test_sub_agent_may_call_only_tools_that_the_manifest_pins_for_the_agent_name(
    world: World, pep: Pep, agent_of: Any
) -> None:
    manifest = json.loads((world.folder / "manifest.yaml").read_bytes())
    task = {"type": "object", "required": ["task"], "properties": {"task": {"type": "string", "maxLength": 99}}}
    delegate = {**manifest["tools"][0], "name": "clerk", "schema": task}
    manifest["tools"].append(delegate)
    pins = {"agent:kit": ["clerk", "read_note", "pay_bill"], "lead": ["clerk"], "clerk": ["read_note", "pay_bill"]}
    manifest["agents"] = [{"id": name, "tools": dict.fromkeys(tools, "1.0.0")} for name, tools in pins.items()]
    (world.folder / "manifest.yaml").write_text(json.dumps(manifest))
    with Pep.from_files(world.folder / "manifest.yaml", approvals=Approvals()) as pinned:
        middleware = agent_framework_middleware(pinned, World.session)
        below, above = ScriptedModel([READ, *HELD[:1]]), ScriptedModel([READ, ("clerk", {"task": "all of it"}, "c2")])
        clerk = agent_of(below, name="clerk", middleware=middleware)
        lead = agent_of(above, name="lead", middleware=middleware, tools=[*functions(world).values(), clerk.as_tool()])

        response = await lead.run("go", session=AgentSession())

    assert (response.user_input_requests, above.results()["c2"]) == ([], "done")
    assert (above.tools[0], below.tools[0]) == (["clerk"], ["read_note", "pay_bill"])
    assert above.results()["c1"].startswith("Error: POLICY_VIOLATION: DENY: manifest.not_pinned")
    assert below.results()["c1"] == 'read_note got {"note":"a"}'
    assert below.results()["first"].startswith("Error: POLICY_VIOLATION: STEP_UP: approvals.required")
    assert world.ran() == [("read_note", {"note": "a"})]


async def test_streaming_run_decides_calls_and_pauses(world: World, pep: Pep, agent_of: Any) -> None:
    model, session = ScriptedModel([READ, *HELD[:1], ("wipe_disk", {"disk": "a"}, "c2")]), AgentSession()
    agent = agent_of(model, name="agent:kit")

    paused: AgentResponse = await agent.run("go", session=session, stream=True).get_final_response()
    (request,) = paused.user_input_requests
    at_pause = world.ran()
    grant(pep, request)
    updates = [update async for update in agent.run(answer(request), session=session, stream=True)]

    assert at_pause == [("read_note", {"note": "a"})]
    assert world.ran() == [*at_pause, ("pay_bill", BILLS[0])]
    assert updates[-1].text == "done"
    assert model.results()["c2"].startswith("Error: POLICY_VIOLATION: DENY: delegation.exceeds_agent")


class Greedy(FunctionMiddleware):
    """Middleware that changes the arguments of a call after the decision."""

    async def process(self, context: Any, call_next: Any) -> None:
        context.arguments = {"note": "another"}
        await call_next()


class Repeats(FunctionMiddleware):
    """Middleware that runs an allowed call twice."""

    async def process(self, context: Any, call_next: Any) -> None:
        await call_next()
        await call_next()


@pytest.mark.parametrize(("late", "ran"), [(Greedy, []), (Repeats, [("read_note", {"note": "a"})])])
async def test_later_middleware_that_changes_or_repeats_a_call_stops_the_run(
    world: World, agent_of: Any, late: Any, ran: list[Any]
) -> None:
    class Late(ContextProvider):
        async def before_run(self, *, context: Any, **_: Any) -> None:
            context.extend_middleware(self.source_id, late())

    with pytest.raises(MiddlewareFailure):
        await agent_of(ScriptedModel([READ]), context_providers=[Late("late")]).run("go")

    assert world.ran() == ran


async def test_guard_middleware_added_outside_of_a_run_denies_all_calls(world: World, pep: Pep, agent_of: Any) -> None:
    model = ScriptedModel([READ])
    model.function_middleware.append(agent_framework_middleware(pep, World.session)[1])

    await agent_of(model, middleware=None).run("go")

    assert model.results() == {
        "c1": "Error: pep.internal_error: the call could not be decided, so the tool did not run"
    }
    assert world.ran() == []


async def test_policy_sees_the_real_tool_name_and_external_tools_are_hidden(world: World, agent_of: Any) -> None:
    def note(disk: str) -> str:
        return run_body(world.record, "wipe_disk", {"disk": disk})

    elsewhere = FunctionTool(name="read_note", description="", func=None, input_model={"type": "object"})
    model = ScriptedModel([("wipe_disk", {"disk": "a"}, "c1"), ("note", {"disk": "a"}, "c2")])
    tools = [FunctionTool(name="wipe_disk", func=note), note, {"type": "web_search"}, elsewhere]

    await agent_of(model, tools=tools).run("go")

    told = {name: text.split(": ")[1:3] for name, text in model.results().items()}
    assert told == {
        "c1": ["POLICY_VIOLATION", "DENY"],
        "c2": ["INVALID_TOOL_NAME", "'note' is not a tool of manifest 1.0.0"],
    }
    assert (model.tools[0], world.ran()) == ([], [])


async def test_agent_does_not_get_a_tool_that_differs_from_the_manifest(
    agent_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def read_note(note: int) -> str:
        raise AssertionError(note)

    model = ScriptedModel([READ])
    await agent_of(model, tools=[read_note]).run("go")

    assert model.tools[0] == []
    (line,) = [each.getMessage() for each in caplog.records if each.name == "pdp.adapters"]
    assert "read_note: note: type string became integer" in line


async def test_session_function_gets_the_context_of_the_run(pep: Pep, agent_of: Any) -> None:
    def session(run: Any) -> dict[str, Any]:
        return {**World.session, "request_id": run.function_invocation_kwargs["request_id"]}

    model, thread = ScriptedModel([READ]), AgentSession(session_id="thread-1")
    agent = agent_of(model, session=session, name="agent:kit")
    await agent.run("go", session=thread, function_invocation_kwargs={"request_id": "r-7"})

    dispatched = pep.audit.events[0]  # type: ignore[attr-defined]
    known = {name: dispatched[name] for name in ("request_id", "run_id", "tool_call_id", "agent")}
    assert known == {"request_id": "r-7", "run_id": "thread-1", "tool_call_id": "c1", "agent": "agent:kit"}


async def test_tool_that_asks_its_user_a_question_pauses_the_run(world: World, agent_of: Any) -> None:
    question = Content.from_text("Which page?")
    question.user_input_request = True

    def post_note(note: str) -> str:
        raise UserInputRequiredException([question])

    model = ScriptedModel([("post_note", {"note": "a"}, "c1")], [READ])
    response = await agent_of(model, tools=[post_note]).run("go")

    assert [each.text for each in response.user_input_requests] == ["Which page?"]
    assert len(model.turns) == 1
