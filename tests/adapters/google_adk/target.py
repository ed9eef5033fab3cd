"""The conformance target for ADK: a runner whose model makes the calls in the user's message."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from anyio.from_thread import BlockingPortal
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from pydantic import Field

from pdp import Pep
from pdp.adapters.google_adk import AdkPlugin
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions

ASKED = "adk_request_confirmation"


class ScriptedLlm(BaseLlm):
    """A model that makes the calls in the user's message, `[[tool, arguments, call_id], ...]`, then says `done`.

    An agent that is used as a tool gets the calls in its argument `note`.
    """

    model: str = "scripted"
    offered: list[list[str]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        groups = llm_request.config.tools or []
        self.offered.append([each.name for group in groups for each in group.function_declarations or []])
        parts = [types.Part(function_call=call) for call in scripted(llm_request.contents[-1])]
        for part in parts if stream else []:
            yield LlmResponse(content=types.Content(role="model", parts=[part]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=parts or [types.Part(text="done")]))


def scripted(content: types.Content) -> list[types.FunctionCall]:
    """Return the calls that a user's message asks for. A message with the result of a call asks for no calls."""
    parts = content.parts or []
    given = re.search(r'\[\[.*\]\]|\{"note".*\}', "".join(part.text or "" for part in parts), re.DOTALL)
    if given is None or any(part.function_response for part in parts):
        return []
    calls = json.loads(given[0])
    calls = json.loads(calls["note"]) if isinstance(calls, dict) else calls
    return [types.FunctionCall(name=name, args=arguments, id=call_id) for name, arguments, call_id in calls]


class Run:
    """One session of a runner, with the results that the model got and the calls that wait for a confirmation."""

    def __init__(self, runner: Runner, session: str) -> None:
        self.runner, self.session = runner, session
        self.told: dict[str, Any] = {}
        self.waits: dict[str, tuple[str, Any]] = {}
        self.events: list[Event] = []

    async def propose(self, *calls: tuple[str, dict[str, Any], str], **options: Any) -> None:
        """Send a user's message that lets the model make these calls."""
        await self._say(types.Part(text=json.dumps(calls)), **options)

    async def resume(self, *call_ids: str, confirmed: bool = True, **more: Any) -> None:
        """Confirm or reject these calls in ADK, and continue the run."""
        response = {"confirmed": confirmed, **more}
        ids = [self.waits.pop(call_id)[0] for call_id in call_ids]
        answers = [types.FunctionResponse(id=each, name=ASKED, response=response) for each in ids]
        await self._say(*(types.Part(function_response=each) for each in answers))

    async def _say(self, *parts: types.Part, **options: Any) -> None:
        message = types.Content(role="user", parts=[*parts])
        call = self.runner.run_async(user_id="person-1", session_id=self.session, new_message=message, **options)
        async for event in call:
            self.events.append(event)
            for asked in event.get_function_calls():
                if asked.name == ASKED and asked.args and asked.id:
                    confirmation = asked.args["toolConfirmation"]
                    self.waits[asked.args["originalFunctionCall"]["id"]] = (asked.id, confirmation.get("payload"))
            self.told |= {each.id: each.response for each in event.get_function_responses() if each.id}


async def opened_run(runner: Runner, session: str) -> Run:
    await runner.session_service.create_session(app_name=runner.app_name, user_id="person-1", session_id=session)
    return Run(runner, session)


class PassingPlugin(BasePlugin):
    """A plugin of the application that lets every call pass."""

    async def before_tool_callback(self, **_: Any) -> None:
        return None


def _passing(**_: Any) -> None:
    return None


class AdkClient(AdapterClient):
    """A client that makes each call in a separate session."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)

        beside = world.setting == "beside"
        self.model = ScriptedLlm()
        agent = LlmAgent(
            name="kit",
            model=self.model,
            tools=[*functions(world).values(), shell(world)],
            before_tool_callback=_passing if beside else None,
        )
        plugins = [*[PassingPlugin("first")][:beside], AdkPlugin(pep, world.session), PassingPlugin("last")]
        app = App(name="kit", root_agent=agent, plugins=plugins[: None if beside else 1])
        self.runner = Runner(app=app, session_service=InMemorySessionService())
        self.waiting: dict[str, tuple[Run, str]] = {}
        self.sessions = 0

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        key = json.dumps([tool, arguments])
        if key in self.waiting:
            run, call_id = self.waiting.pop(key)
            await run.resume(call_id)
        else:
            self.sessions += 1
            run = await opened_run(self.runner, f"s{self.sessions}")
            await run.propose((tool, arguments, call_id))
        told = run.told[call_id]
        if call_id in run.waits:
            self.waiting[key] = (run, call_id)
            return Observed(json.dumps(told), is_error=True, held=run.waits[call_id][1]["approval_id"])
        return Observed(str(told.get("result") or told), "error" in told)

    async def alisted(self) -> Sequence[str]:
        await (await opened_run(self.runner, "list")).propose()
        return self.model.offered[-1]


TARGET = AdapterTarget("Google ADK", AdkClient, "google-adk")
