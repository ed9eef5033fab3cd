"""The adapter of CrewAI, in runs of crews with a scripted model."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from crewai.hooks import HookAborted, clear_before_tool_call_hooks
from crewai.tools import BaseTool
from crewai.tools import tool as crew_tool
from crewai.tools.tool_failure import ToolFailure

from pdp import Approvals, Pep, ToolError
from pdp.adapters.crewai import CrewAiGuard
from pdp.errors import UsageError
from pdp.testing.conformance.world import World
from tests.adapters.crewai.target import Turn, agent_of, crew_of
from tests.conformance.local import opened_pep
from tests.support import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own
MANIFEST = "pdp/testing/conformance/manifest.yaml"
STORY = """\
officer-123: pay 20,000
  payment hub: 20,000 from ops-main to bene-acme-441
  model: It was: sent INV-8842
officer-123: pay 47,500
  model: It was: POLICY_VIOLATION: STEP_UP: limits.exceeded: The amo
supervisor-9: granted what waits for payments.approver
officer-123: pay 47,500
  payment hub: 47,500 from ops-main to bene-acme-441
  model: It was: sent INV-8842
officer-123: pay 47,500
  model: It was: sent INV-8842
"""
NOTE = ("read_note", {"note": "n", "page": None})
BILL, OTHER_BILL = ("pay_bill", {"payee": "a", "amount": 500.0}), ("pay_bill", {"payee": "b", "amount": 1.0})
BLOCKED = "Tool execution blocked by hook. Tool: "
_APPROVAL = re.compile(r".* \(approval (\w+) is pending\)")


@pytest.fixture
def pep() -> Iterator[Pep]:
    with Pep.from_files(MANIFEST, approvals=Approvals()) as opened:
        yield opened


@pytest.fixture
def guard(pep: Pep) -> Iterator[CrewAiGuard]:
    opened = CrewAiGuard(pep, World.session)
    yield opened
    opened.close()


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def tools(ran: list[Any]) -> dict[str, BaseTool]:
    @crew_tool
    def pay_bill(payee: str, amount: float) -> str:
        """Pay."""
        ran.append((payee, amount))
        return f"paid {payee}"

    @crew_tool("Read Note", max_usage_count=3)
    def read_note(note: str, page: float | None = None, filter: dict[str, Any] | None = None) -> str:  # noqa: A002
        """Read."""
        ran.append(note)
        return f"note {note}"

    @crew_tool
    def post_note(note: str) -> Any:
        """Post."""
        ran.append(note)
        if note == "said":
            return ToolFailure(message="the board is shut")
        raise {"key": KeyError("secret"), "tool": ToolError("the board is full"), "stop": HookAborted("stop")}[note]

    return {"pay_bill": pay_bill, "read_note": read_note, "post_note": post_note}


def told(turns: list[Turn], tools: list[BaseTool], **given: Any) -> list[str]:
    """What the model is told in a run; of a held call, the approval's id alone."""
    agent = agent_of(turns, tools, **given)
    crew_of(agent).kickoff()
    return words(agent.llm.told)


def words(texts: list[str]) -> list[str]:
    return [_APPROVAL.sub(r"\1", text) for text in texts]


def grant(pep: Pep, held: str) -> None:
    assert pep.approvals is not None
    pep.approvals.grant(held, World.approver)


def dispatched(pep: Pep) -> list[tuple[str, str | None]]:
    """Of each call that was decided: the tool, and the agent that called."""
    events = [event for event in pep.audit.events if event["type"].endswith(".dispatch")]  # type: ignore[attr-defined]
    return [(event["tool_name"], event["agent"]) for event in events]


def test_calls_that_are_held_together_are_granted_out_of_order_and_run_once(
    pep: Pep, guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any]
) -> None:
    guarded = guard.tools([tools["pay_bill"]])

    first, second = told([[BILL, OTHER_BILL]], guarded)
    grant(pep, second)
    after_second = told([[BILL, OTHER_BILL]], guarded)
    grant(pep, first)
    after_first = told([[BILL, OTHER_BILL]], guarded)

    assert (after_second, after_first) == ([first, "paid b"], ["paid a", ANY])
    assert ran == [("b", 1.0), ("a", 500.0)]


def test_a_held_call_is_made_again_by_another_crew_with_another_enforcement_point(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    ran: list[str] = []

    @crew_tool
    def pay_bill(payee: str, amount: float) -> str:
        """Pay."""
        ran.append(payee)
        return "paid"

    seen = []
    for _ in range(3):
        with opened_pep(world) as pep:
            guard = CrewAiGuard(pep, world.session)
            seen += told([[BILL]], guard.tools([pay_bill]))
            guard.close()
            if len(seen) == 1:
                grant(pep, seen[0])
    world.close()

    assert (seen[1:], ran) == (["paid", ANY], ["a"])
    assert re.fullmatch(r"\w+", seen[2])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("key", "TOOL_EXECUTION_FAILED: KeyError"),
        ("tool", "TOOL_EXECUTION_FAILED: the board is full"),
        ("said", "TOOL_EXECUTION_FAILED: the board is shut"),
    ],
)
def test_a_tool_that_fails_runs_once_and_the_model_is_told_safe_words(
    guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any], native: bool, note: str, text: str
) -> None:
    assert told([[("post_note", {"note": note})]], guard.tools([tools["post_note"]]), native=native) == [text]
    assert ran == [note]


def test_what_the_framework_raises_to_stop_a_run_passes(
    guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any]
) -> None:
    with pytest.raises(HookAborted):
        guard.tools([tools["post_note"]])[0].run(note="stop")

    assert ran == ["stop"]


@pytest.mark.parametrize("native", [True, False])
def test_each_call_is_decided_whatever_is_cached(
    pep: Pep, guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any], native: bool
) -> None:
    other = ("pay_bill", BILL[1])

    both = guard.tools([tools["read_note"], tools["pay_bill"]])
    seen = told([[NOTE], [other], [NOTE]], both, native=native, cache=True)

    assert seen == ["note n", ANY, "note n"]
    assert dispatched(pep) == [("read_note", "kit"), ("pay_bill", "kit"), ("read_note", "kit")]
    assert ran == ["n", "n"]


def test_a_limit_of_uses_is_that_of_a_run(guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any]) -> None:
    guarded = guard.tools([tools["read_note"]])
    turns: list[Turn] = [[("read_note", {"note": note})] for note in "abcd"]

    first, second = told(turns, guarded), told(turns[:1], guarded)

    assert first[:3] + second == ["note a", "note b", "note c", "note a"]
    assert "usage limit" in first[3]
    assert ran == ["a", "b", "c", "a"]


@pytest.mark.parametrize("native", [True, False])
def test_a_tool_that_is_not_guarded_does_not_run_even_under_the_name_of_one_that_is(
    pep: Pep, guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any], native: bool
) -> None:
    @crew_tool("read_note")
    def impostor(note: str) -> str:
        """Read."""
        ran.append("impostor")
        return note

    calls: Turn = [NOTE, ("read_note_2", NOTE[1])]  # what the framework calls the second of a name
    both = [impostor, *guard.tools([tools["read_note"]])]

    seen = told([calls[: 1 + native]], both, native=native)

    assert seen == [f"{BLOCKED}read_note", "note n"][: 1 + native]
    assert ran == ["n"][:native]


def test_tools_that_need_no_decision_are_named(pep: Pep, ran: list[Any]) -> None:
    @crew_tool
    def count_words(text: str) -> str:
        """Count."""
        ran.append(text)
        return "1"

    guard = CrewAiGuard(pep, World.session, unguarded=["count_words"])
    seen = told([[("count_words", {"text": "a"})]], [count_words])
    guard.close()

    assert (seen, ran) == (["1"], ["a"])


def test_a_coworker_is_known_by_its_own_role(pep: Pep, tools: dict[str, BaseTool], ran: list[Any]) -> None:
    guard = CrewAiGuard(pep, World.session, unguarded=["delegate_work_to_coworker", "ask_question_to_coworker"])
    guarded = guard.tools([tools["read_note"], tools["pay_bill"]])
    work = {"task": "read", "context": "c", "coworker": "reader"}
    reader = agent_of([[NOTE, BILL]], guarded, role="reader")
    chief = agent_of([[("delegate_work_to_coworker", work)]], guarded, role="chief", allow_delegation=True)

    crew_of(chief, agents=[chief, reader]).kickoff()
    guard.close()

    assert (words(reader.llm.told), ran) == (["note n", ANY], ["n"])
    assert sorted(dispatched(pep)) == [("pay_bill", "reader"), ("read_note", "reader")]


def test_the_session_is_made_of_the_agent_and_its_crew_or_of_nothing_where_no_agent_calls(
    pep: Pep, tools: dict[str, BaseTool], ran: list[Any]
) -> None:
    def session(context: Any) -> dict[str, Any]:
        return {"claims": {**World.session["claims"], "sub": f"{context.crew.name} of {context.agent.role}"}}

    guard = CrewAiGuard(pep, session)
    guarded = guard.tools([tools["read_note"]])
    crew_of(agent_of([[NOTE]], guarded), name="night shift").kickoff()
    alone = guarded[0].run(note="alone")
    guard.close()

    assert [event["subject"] for event in pep.audit.events][:1] == ["night shift of kit"]  # type: ignore[attr-defined]
    assert alone == ToolFailure(message="pep.internal_error: the call could not be decided, and nothing ran")
    assert ran == ["n"]


def _async(crew: Any) -> Any:
    return asyncio.run(crew.akickoff())


def _streamed(crew: Any) -> Any:
    return list(crew.kickoff())


@pytest.mark.parametrize(("kickoff", "given"), [(_async, {}), (_streamed, {"stream": True})])
def test_a_crew_that_runs_otherwise_is_decided_likewise(
    pep: Pep,
    guard: CrewAiGuard,
    tools: dict[str, BaseTool],
    ran: list[Any],
    kickoff: Callable[[Any], Any],
    given: dict[str, Any],
) -> None:
    agent = agent_of([[NOTE, BILL]], guard.tools([tools["read_note"], tools["pay_bill"]]))

    kickoff(crew_of(agent, **given))

    assert ran == ["n"]
    assert sorted(dispatched(pep)) == [("pay_bill", "kit"), ("read_note", "kit")]


def test_guarded_tools_are_decided_when_somebody_has_taken_the_hooks_away(
    pep: Pep, guard: CrewAiGuard, tools: dict[str, BaseTool], ran: list[Any]
) -> None:
    guarded = guard.tools([tools["pay_bill"]])
    clear_before_tool_call_hooks()

    told([[BILL]], guarded)

    assert (ran, dispatched(pep)) == ([], [("pay_bill", "agent:kit")])  # of the session


def test_tools_that_are_not_as_declared_are_refused_at_start(guard: CrewAiGuard, tools: dict[str, BaseTool]) -> None:
    @crew_tool
    def wipe_disk(disk: int) -> str:
        """Wipe."""
        raise NotImplementedError

    with pytest.raises(UsageError, match="wipe_disk: disk: type string became integer"):
        guard.tools([wipe_disk])
    with pytest.raises(UsageError, match="two tools have one name"):
        guard.tools([tools["read_note"], crew_tool("read note")(tools["read_note"].func)])


@pytest.mark.process
def test_a_wire_is_held_granted_and_made_once_in_the_example() -> None:
    ended = subprocess.run(
        [sys.executable, "examples/frameworks/crewai_payments.py"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (0, STORY)
