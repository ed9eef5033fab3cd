"""ADK's runner under the conformance suite, with a model that proposes what the user's message says."""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
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
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.local import functions

ASKED = "adk_request_confirmation"


class ScriptedLlm(BaseLlm):
    """Proposes the calls that stand in the user's message: `[[tool, arguments, call_id], ...]`; then says `done`.

    An agent that is a tool has them in the argument `note` of its call.
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
    """Return the calls that a message asks for; none where it has the result of one."""
    parts = content.parts or []
    given = re.search(r'\[\[.*\]\]|\{"note".*\}', "".join(part.text or "" for part in parts), re.DOTALL)
    if given is None or any(part.function_response for part in parts):
        return []
    calls = json.loads(given[0])
    calls = json.loads(calls["note"]) if isinstance(calls, dict) else calls
    return [types.FunctionCall(name=name, args=arguments, id=call_id) for name, arguments, call_id in calls]


class Run:
    """One session of a runner: what the model is told of each call, and what waits for a person."""

    def __init__(self, runner: Runner, session: str) -> None:
        self.runner, self.session = runner, session
        self.told: dict[str, Any] = {}
        self.waits: dict[str, tuple[str, Any]] = {}
        self.events: list[Event] = []

    async def propose(self, *calls: tuple[str, dict[str, Any], str], **options: Any) -> None:
        """Be a user whose message makes the model propose these calls."""
        await self._say(types.Part(text=json.dumps(calls)), **options)

    async def resume(self, *call_ids: str, confirmed: bool = True, **more: Any) -> None:
        """Answer ADK's requests for confirmation of these calls."""
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
    """Return a run of a new session."""
    await runner.session_service.create_session(app_name=runner.app_name, user_id="person-1", session_id=session)
    return Run(runner, session)


class PassingPlugin(BasePlugin):
    """Somebody else's plugin, which lets everything pass."""

    async def before_tool_callback(self, **_: Any) -> None:
        return None


def _passing(**_: Any) -> None:
    return None


class AdkClient(AdapterClient):
    """Each call is a run in a session of its own."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)

        def open_shell(command: str) -> str:
            return run_body(world.record, "open_shell", {"command": command})

        beside = world.setting == "beside"
        self.model = ScriptedLlm()
        agent = LlmAgent(
            name="kit",
            model=self.model,
            tools=[*functions(world).values(), open_shell],
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


class AdkTarget:
    """ADK's runner with our plugin."""

    name = "Google ADK"
    versions: Mapping[str, str] = {"google-adk": version("google-adk")}
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "A model's calls name their arguments."}

    @contextmanager
    def open(self, world: World) -> Iterator[AdkClient]:
        with AdkClient.opened(world) as client:
            yield client


TARGET = AdkTarget()
