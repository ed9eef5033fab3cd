"""The conformance target for CrewAI: a crew with one agent and a scripted model."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from crewai import Agent, Crew, Task
from crewai.hooks import register_before_tool_call_hook, unregister_before_tool_call_hook
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool as crew_tool
from pydantic import Field, PrivateAttr

from pdp import Pep
from pdp.adapters.crewai import CrewAiGuard
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import shell
from tests.conformance.local import functions, opened_pep

_APPROVAL = re.compile(r"\(approval (\w+) is pending\)")

Turn = Sequence[tuple[str, Mapping[str, Any]]]
"""The calls that the model makes in one turn, as pairs of a tool name and arguments."""


class ScriptedLlm(BaseLLM):
    """A model that makes the scripted calls of each turn. `told` contains the result of each call."""

    told: list[str] = Field(default_factory=list)
    offered: list[str] = Field(default_factory=list)
    _turns: list[Turn] = PrivateAttr(default_factory=list)
    _native: bool = PrivateAttr(default=True)

    def call(self, messages: Any, tools: Any = None, *_: Any, **__: Any) -> Any:
        self.offered = [each["function"]["name"] for each in tools or ()]
        self.told = [str(each["content"]) for each in messages if each["role"] == "tool"] or _observed(messages)
        if not self._turns:
            return "Thought: I have finished.\nFinal Answer: done"
        turn = self._turns.pop(0)
        if not self._native:
            [(name, given)] = turn
            return f"Thought: I need it.\nAction: {name}\nAction Input: {json.dumps(given)}"
        return [
            {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for number, (name, given) in enumerate(turn, len(self.told))
        ]

    def supports_function_calling(self) -> bool:
        return self._native


def _observed(messages: Any) -> list[str]:
    """Return the results that the messages show to a model that writes its tool calls as text."""
    texts = [str(each["content"]) for each in messages if each["role"] == "assistant"]
    return [text.partition("Observation: ")[2].partition("\n")[0] for text in texts if "Observation: " in text]


def agent_of(turns: Sequence[Turn], tools: Sequence[Any], *, native: bool = True, **given: Any) -> Agent:
    """Return an agent whose model makes these turns. Unless `native` is true, the model writes its calls as text."""
    llm = ScriptedLlm(model="scripted")
    llm._turns, llm._native = list(turns), native
    return Agent(**{"role": "kit", "goal": "g", "backstory": "b", "llm": llm, "tools": list(tools)} | given)


def crew_of(agent: Agent, **given: Any) -> Crew:
    task = Task(description="work", expected_output="done", agent=agent)
    return Crew(**{"agents": [agent], "tasks": [task]} | given)


class CrewAiClient:
    """A client that runs a new crew for each turn in the calling thread."""

    def __init__(self, world: World, pep: Pep) -> None:
        made = {**functions(world), "open_shell": shell(world)}
        for name, function in made.items():
            function.__doc__ = name
        self.pep, self.world = pep, world
        # If the session is given as a function, tools are listed even if the enforcement point fails, so the model can
        # call them.
        self.guard = CrewAiGuard(pep, (lambda _: world.session) if world.setting == "raises" else world.session)
        self.tools = self.guard.tools([crew_tool(function) for function in made.values()])

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if by_position:
            raise NotImplementedError
        agent = agent_of([[(tool, arguments)]], self.tools)
        done = crew_of(agent).kickoff()
        [text] = agent.llm.told
        held = _APPROVAL.search(text)
        failed = done.tasks_output[0].tool_failures or text.startswith("Tool execution blocked")
        return Observed(text, bool(failed), held[1] if held else None)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        raise NotImplementedError

    def approve(self, held: str) -> None:
        assert self.pep.approvals is not None
        self.pep.approvals.grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        agent = agent_of([], self.tools)
        crew_of(agent).kickoff()
        return list(agent.llm.offered)


def _let_pass(_: Any) -> bool:
    return True


class CrewAiTarget:
    """Crews with one agent whose tools are guarded by a `CrewAiGuard`."""

    name = "CrewAI"
    versions: Mapping[str, str] = {"crewai": version("crewai")}
    impossible: Mapping[str, str] = {
        "positional arguments": "A model's calls name their arguments.",
        "cancelled call": "A crew runs its tools in threads, which nothing can end.",
    }
    spelling = "{}"

    @contextmanager
    def open(self, world: World) -> Iterator[CrewAiClient]:
        if beside := world.setting == "beside":
            register_before_tool_call_hook(_let_pass)
        with opened_pep(world) as pep, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ignore the warnings of CrewAI's own code.
            client = CrewAiClient(world, pep)
            try:
                yield client
            finally:
                client.guard.close()
                if beside:
                    unregister_before_tool_call_hook(_let_pass)


TARGET = CrewAiTarget()
