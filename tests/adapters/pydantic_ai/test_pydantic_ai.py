"""Runs of Pydantic AI execute only allowed calls. Agents with tools that bypass decisions do not start."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import orjson
import pytest
from pydantic import AfterValidator, BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    ToolApproved,
    ToolDenied,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability, Hooks, NativeTool
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolCallPart
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset, WrapperToolset

from pdp import Approvals, Pep
from pdp.adapters.pydantic_ai import PydanticAiCapability
from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.testing.conformance.world import World
from tests.adapters.pydantic_ai.target import Script, kit_tools, outputs
from tests.support import ROOT

SUITE = read_document(ROOT / "pdp/testing/conformance/manifest.yaml").value
BOOK = {
    "name": "book_day",
    "version": "1.0.0",
    "effect_class": "read-internal",
    "scopes": ["kit.use"],
    "schema": {
        "type": "object",
        "required": ["day", "guest"],
        "properties": {
            "day": {"type": "string", "format": "date"},
            "guest": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "maxLength": 200}, "age": {"type": "number"}},
            },
            "nights": {"type": "integer", "default": 1},
        },
    },
    "invariants": [
        {
            "id": "FEW",
            "rule": "At most 3.",
            "check": "!has(call.nights) || call.nights <= 3",
            "correct": {"set": {"nights": 3}},
        }
    ],
}
FIRST, SECOND = {"payee": "a", "amount": 1}, {"payee": "b", "amount": 2}
NOTE = {"note": "a"}


class Kit:
    """The suite's tools, an enforcement point in this process, and a record of the calls that ran."""

    def __init__(self, folder: Path, pep: Pep) -> None:
        self.pep, self.record = pep, folder / "ran.jsonl"
        self.record.touch()

    def agent(self, *turns: Any, name: str = "kit", session: Any = World.session, **options: Any) -> Any:
        beside = options.pop("capabilities", [])
        guard = PydanticAiCapability(self.pep, session, pauses=options.pop("pauses", True))
        given = {"tools": self.tools, "output_type": [str, DeferredToolRequests], **options}
        return Agent(Script(*turns).model, name=name, capabilities=[guard, *beside], **given)

    @property
    def tools(self) -> list[Any]:
        return kit_tools(SimpleNamespace(record=self.record))  # type: ignore[arg-type]

    @property
    def ran(self) -> list[Any]:
        return [orjson.loads(line)[1] for line in self.record.read_bytes().splitlines()]

    @property
    def results(self) -> list[Any]:
        """Return the result event of each call that ran, from the audit log."""
        events: list[Any] = self.pep.audit.events  # type: ignore[attr-defined]
        return [each for each in events if each["type"].endswith(".result")]

    def grant(self, held: Any) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held["approval_id"], World.approver)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    (tmp_path / "manifest.yaml").write_bytes(orjson.dumps({**SUITE, "tools": [*SUITE["tools"], BOOK]}))
    with Pep.from_files(tmp_path / "manifest.yaml", approvals=Approvals()) as pep:
        yield Kit(tmp_path, pep)


def calls(*made: tuple[str, Any]) -> Sequence[ToolCallPart]:
    return [ToolCallPart(tool, arguments, tool_call_id=f"c{at}") for at, (tool, arguments) in enumerate(made)]


def start(agent: Any, **options: Any) -> Any:
    return asyncio.run(agent.run("go", **options))


def resume(agent: Any, run: Any, answer: Any = True) -> Any:
    """Resume a paused run, and give the same answer for every pending call, as an application does."""
    answers = {call.tool_call_id: answer for call in run.output.approvals}
    results = DeferredToolResults(approvals=answers)
    return asyncio.run(agent.run(message_history=run.all_messages(), deferred_tool_results=results))


def test_each_held_call_of_a_turn_runs_once_when_granted(kit: Kit) -> None:
    agent = kit.agent(calls(("pay_bill", FIRST), ("pay_bill", SECOND)))
    run = start(agent)
    first, second = run.output.metadata.values()
    assert (first["tool"], first["approvers"], kit.ran) == ("pay_bill", ["kit.approver"], [])
    kit.grant(second)

    half = resume(agent, run)
    assert (kit.ran, half.output.metadata) == ([SECOND], {"c0": first})
    kit.grant(first)
    whole = resume(agent, half)

    assert (whole.output, kit.ran) == ("done", [SECOND, FIRST])


def test_call_approved_only_in_the_framework_is_held_again(kit: Kit) -> None:
    agent = kit.agent(calls(("pay_bill", FIRST)))
    run = start(agent)

    again = resume(agent, run)
    kit.grant(again.output.metadata["c0"])
    denied = resume(agent, again, ToolDenied("not today"))

    assert again.output.metadata == run.output.metadata
    assert (denied.output, outputs(denied), kit.ran) == ("done", [("not today", "denied")], [])


def test_arguments_overridden_by_an_approval_are_decided_again(kit: Kit) -> None:
    agent = kit.agent(calls(("pay_bill", FIRST)))
    run = start(agent)
    kit.grant(run.output.metadata["c0"])

    other = resume(agent, run, ToolApproved(override_args=SECOND))

    assert (other.output.metadata["c0"]["approval_id"] != run.output.metadata["c0"]["approval_id"], kit.ran) == (
        True,
        [],
    )


RESUME = """
import sys
from pathlib import Path
from tests.adapters.pydantic_ai.test_pydantic_ai import finish
finish(Path(sys.argv[1]))
"""


@pytest.mark.process
def test_paused_run_resumes_in_another_process(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "manifest.yaml").write_bytes(orjson.dumps(SUITE))
    (tmp_path / "pdp.yaml").write_bytes(orjson.dumps({"manifest": "manifest.yaml", "store": "sqlite:///store.db"}))
    with Pep.from_project(tmp_path / "pdp.yaml") as pep:
        kit = Kit(tmp_path, pep)
        run = start(kit.agent(calls(("pay_bill", FIRST))))
        kit.grant(run.output.metadata["c0"])
        (tmp_path / "messages.json").write_bytes(run.all_messages_json())

        process(RESUME, str(tmp_path))

    assert kit.ran == [FIRST]


def finish(folder: Path) -> None:
    history = ModelMessagesTypeAdapter.validate_json((folder / "messages.json").read_bytes())
    with Pep.from_project(folder / "pdp.yaml") as pep:
        for _ in range(2):  # Resume twice, because a person may click twice.
            run = SimpleNamespace(
                output=DeferredToolRequests(approvals=history[-1].tool_calls), all_messages=lambda: history
            )
            resume(Kit(folder, pep).agent(), run)


def process(*words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(["-c"] if "\n" in words[0] else []), *words]
    return subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout


def test_policy_sees_the_name_of_an_agent_inside_a_tool(kit: Kit) -> None:
    clerk = kit.agent(calls(("read_note", NOTE)), name="clerk")

    async def ping_host(host: str) -> str:
        return str((await clerk.run(host)).output)

    run = start(kit.agent(calls(("ping_host", {"host": "there"})), tools=[ping_host]))

    assert outputs(run) == [("done", "success")]
    assert [(each["agent"], each["tool_name"]) for each in kit.results] == [
        ("clerk", "read_note"),
        ("kit", "ping_host"),
    ]


@pytest.mark.parametrize("way", ["run_stream", "run_stream_events"])
def test_calls_of_a_streamed_run_are_decided(kit: Kit, way: str) -> None:
    async def streamed() -> Any:
        async with getattr(agent, way)("go") as stream:
            if way == "run_stream":
                return await stream.get_output()
            return [event async for event in stream][-1].result.output

    agent = kit.agent(calls(("read_note", NOTE), ("pay_bill", FIRST), ("wipe_disk", {"disk": "a"})))

    output = asyncio.run(streamed())

    assert ([each["tool"] for each in output.metadata.values()], kit.ran) == (["pay_bill"], [NOTE])


def test_session_combines_the_deps_with_the_conversation_id(kit: Kit) -> None:
    agent = kit.agent(calls(("read_note", NOTE)), session=lambda deps: {"claims": deps})

    start(agent, deps=World.session["claims"], conversation_id="talk-1")

    (event,) = kit.results
    assert (event["subject"], event["run_id"], event["agent"], event["tool_call_id"]) == (
        "person-1", "talk-1", "kit", "c0",
    )  # fmt: skip


@pytest.mark.parametrize("at", [0, 1])
def test_arguments_changed_by_another_capability_are_decided(kit: Kit, at: int) -> None:
    async def other(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {"url": "b", "limit": 99}

    hook = Hooks(**{("before_tool_execute", "after_tool_validate")[at]: other})
    start(kit.agent(calls(("fetch_page", {"url": "a", "limit": 1})), capabilities=[hook]))

    assert kit.ran == [{"url": "b", "limit": 10}]


class _Other(WrapperToolset):  # type: ignore[misc]
    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
        return await super().call_tool(name, {"url": "b", "limit": 99}, ctx, tool)


class _Wrapping(AbstractCapability):  # type: ignore[misc]
    def get_wrapper_toolset(self, toolset: Any) -> Any:
        return _Other(toolset)


def test_guard_runs_last_of_all_capabilities_in_any_list_order(kit: Kit) -> None:
    start(kit.agent(calls(("fetch_page", {"url": "a", "limit": 1})), capabilities=[_Wrapping()]))

    assert kit.ran == [{"url": "b", "limit": 10}]


def test_call_with_arguments_that_are_not_json_is_denied(kit: Kit) -> None:
    def ping_host(host: Annotated[str, AfterValidator(lambda _: object())]) -> str:
        raise AssertionError(host)

    run = start(kit.agent(calls(("ping_host", {"host": "there"})), tools=[ping_host]))

    told = "ping_host: the call cannot be decided, because its arguments are not JSON"
    assert outputs(run) == [(told, "failed")]


class Guest(BaseModel):
    name: str
    age: float | None = None


@pytest.mark.parametrize(("stated", "nights"), [({}, 1), ({"nights": 2}, 2), ({"nights": 9}, 3)])
def test_tool_gets_arguments_of_its_declared_types_after_a_correction(kit: Kit, stated: Any, nights: int) -> None:
    got = []

    def book_day(day: date, guest: Guest, nights: int = 1) -> ToolReturn[Any]:
        got.append((day, guest, nights))
        return ToolReturn(guest, metadata={"room": 7})

    run = start(
        kit.agent(calls(("book_day", {"day": "2026-01-02", "guest": {"name": "Ada"}, **stated})), tools=[book_day])
    )

    assert got == [(date(2026, 1, 2), Guest(name="Ada"), nights)]
    (part,) = [part for message in run.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert (part.content, part.metadata) == (Guest(name="Ada"), {"room": 7})


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("the password"), [("TOOL_EXECUTION_FAILED: ValueError", "failed")]),
        (ToolFailed("no such host"), [("no such host", "failed")]),
        (ModelRetry("name another one"), [("name another one", "retried")]),
    ],
    ids=["ValueError", "ToolFailed", "ModelRetry"],
)
def test_framework_gets_the_control_exceptions_of_a_tool(kit: Kit, raised: Exception, told: Any) -> None:
    def ping_host(host: str) -> str:
        raise raised

    run = start(kit.agent(calls(("ping_host", {"host": "there"})), tools=[ping_host]))

    assert [(text.partition("\n")[0], became) for text, became in outputs(run)] == told


@pytest.mark.parametrize("raised", [ApprovalRequired({"why": "own"}), CallDeferred({"why": "own"})], ids=type)
def test_guarded_tool_can_defer_its_call(kit: Kit, raised: Exception) -> None:
    def ping_host(host: str) -> str:
        raise raised

    run = start(kit.agent(calls(("ping_host", {"host": "there"})), tools=[ping_host]))

    assert run.output.metadata == {"c0": {"why": "own"}}


def test_held_call_in_a_run_that_cannot_pause_returns_a_text(kit: Kit) -> None:
    run = start(kit.agent(calls(("pay_bill", FIRST)), output_type=str, pauses=False))

    assert kit.pep.approvals is not None
    (held,) = kit.pep.approvals.list()
    ((told, became),) = outputs(run)
    assert (held.id in told, became, run.output, kit.ran) == (True, "failed", "done", [])


def test_policy_sees_the_new_name_of_a_renamed_tool(kit: Kit) -> None:
    script = Script(calls(("kit_read_note", NOTE)))
    agent = kit.agent(tools=[], toolsets=[FunctionToolset(kit.tools).prefixed("kit")])

    with agent.override(model=script.model):
        told = outputs(start(agent))

    assert (script.shown, kit.ran, [became for _, became in told]) == ([], [], ["retried"])


def test_agent_does_not_get_a_tool_renamed_to_a_declared_name(kit: Kit) -> None:
    wipe = [tool for tool in kit.tools if tool.__name__ == "wipe_disk"]

    script = Script(calls(("read_note", NOTE)))
    agent = kit.agent(tools=[], toolsets=[FunctionToolset(wipe).renamed({"read_note": "wipe_disk"})])

    with agent.override(model=script.model):
        start(agent)

    assert (script.shown, kit.ran) == ([], [])


def send_mail(text: str) -> str:
    raise AssertionError(text)


WEB, MAIL = NativeTool(WebSearchTool()), ToolDefinition(name="send_mail")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"capabilities": [WEB]}, "web_search: the provider runs this tool without a decision"),
        ({"output_type": [send_mail]}, "send_mail runs on the model's output without a decision"),
        ({"toolsets": [ExternalToolset([MAIL])]}, "send_mail: this tool runs outside of the agent"),
    ],
    ids=["native tool", "output function", "external tool"],
)
def test_guard_rejects_tools_that_bypass_decisions(kit: Kit, options: Any, told: str) -> None:
    final = [ToolCallPart("final_result", {"text": "a"})]

    with pytest.raises(UsageError, match=told):
        start(kit.agent(final, **options))


def test_agent_does_not_get_a_tool_that_differs_from_the_manifest(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def wipe_disk(disk: int) -> int:
        return disk

    start(kit.agent(tools=[wipe_disk]))

    (line,) = [each.getMessage() for each in caplog.records if each.name == "pdp.adapters"]
    assert "wipe_disk: disk: type string became integer" in line
