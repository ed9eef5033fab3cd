"""An agent of Strands under the conformance suite, with a model that proposes what the user's message says."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from anyio.from_thread import BlockingPortal
from strands import Agent, tool
from strands.agent import NullConversationManager
from strands.hooks import BeforeToolCallEvent
from strands.middleware import ExecuteToolStage
from strands.models import Model
from strands.plugins import Plugin

from pdp import Pep
from pdp.adapters.strands import StrandsPlugin
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.local import functions

Call = tuple[str, dict[str, Any], str]


class ScriptedModel(Model):
    """Proposes the calls that stand in the user's message: `[[tool, arguments, call_id], ...]`; then says `done`."""

    def __init__(self) -> None:
        self.offered: list[list[str]] = []

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        self.offered.append([spec["name"] for spec in tool_specs or []])
        text = "".join(block.get("text", "") for block in messages[-1]["content"])
        calls: list[Call] = json.JSONDecoder().raw_decode(text[text.find("[[") :])[0] if "[[" in text else []
        yield {"messageStart": {"role": "assistant"}}
        for name, arguments, call_id in calls:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def agent_of(*plugins: Any, tools: Sequence[Any], **options: Any) -> Agent:
    """An agent with a scripted model, which prints nothing."""
    given = {"model": ScriptedModel(), "callback_handler": None, "conversation_manager": NullConversationManager()}
    return Agent(plugins=[*plugins], tools=[*tools], **{**given, **options})


def tools_of(world: World, pep: Pep) -> list[Any]:
    """The functions of the world's tools as tools of Strands, which makes a string of an argument of any type."""
    schemas = {name: entry.schema_ for name, entry in pep.manifest.tools.items()}
    return [tool(function, inputSchema={"json": schemas[name]}) for name, function in functions(world).items()]


class Run:
    """One conversation of an agent: what the model is told of each call, and what waits for a person."""

    def __init__(self, agent: Agent, **state: Any) -> None:
        self.agent, self.state = agent, state
        self.waits: dict[str, Any] = {}

    async def propose(self, *calls: Call) -> Any:
        """Be a user whose message makes the model propose these calls."""
        return await self._say(json.dumps(calls))

    async def resume(self, *call_ids: str, response: Any = True) -> Any:
        """Answer the interrupts of these calls."""
        return await self.answer({self.waits[call_id].id: response for call_id in call_ids})

    async def answer(self, responses: Mapping[str, Any]) -> Any:
        """Answer interrupts, by their ids."""
        blocks = [{"interruptId": each, "response": response} for each, response in responses.items()]
        return await self._say([{"interruptResponse": block} for block in blocks])

    async def _say(self, prompt: Any) -> Any:
        result = await self.agent.invoke_async(prompt, invocation_state={**self.state})
        self.waits = {each.id.split(":")[-2]: each for each in result.interrupts or []}
        return result

    @property
    def told(self) -> dict[str, tuple[str, str]]:
        """Status and text of each call's result that the model has seen."""
        blocks = [block for message in self.agent.messages for block in message["content"]]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        return {result["toolUseId"]: (result["status"], result["content"][0]["text"]) for result in results}


async def _passing(context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
    async for event in next_fn(context):
        yield event


def _waved_through(event: BeforeToolCallEvent) -> None:
    event.cancel_tool = False


class _Beside(Plugin):
    """A plugin of somebody else's, which lets everything pass."""

    name = "beside"

    def init_agent(self, agent: Agent) -> None:
        agent.add_hook(_waved_through)
        agent.add_middleware(ExecuteToolStage, _passing)


class StrandsClient(AdapterClient):
    """Each call is a conversation of an agent of its own."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)

        @tool
        def open_shell(command: str) -> str:
            """Run a command."""
            return run_body(world.record, "open_shell", {"command": command})

        self.tools = [*tools_of(world, pep), open_shell]
        self.waiting: dict[str, tuple[Run, str]] = {}

    def agent(self) -> Agent:
        plugin = StrandsPlugin(self.pep, self.world.session)
        if self.world.setting != "beside":
            return agent_of(plugin, tools=self.tools)
        return agent_of(_Beside(), plugin, tools=self.tools)

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        key = json.dumps([tool, arguments])
        if key in self.waiting:
            run, call_id = self.waiting.pop(key)
            await run.resume(call_id)
        else:
            run = Run(self.agent())
            await run.propose((tool, arguments, call_id))
        if call_id in run.waits:
            self.waiting[key] = (run, call_id)
            pending = run.waits[call_id].reason
            return Observed(json.dumps(pending), is_error=True, held=pending["approval_id"])
        status, text = run.told[call_id]
        return Observed(text, status == "error")

    async def alisted(self) -> Sequence[str]:
        run = Run(self.agent())
        await run.propose()
        assert isinstance(run.agent.model, ScriptedModel)
        return run.agent.model.offered[-1]


class StrandsTarget:
    """Strands' agent with our plugin."""

    name = "Strands"
    versions: Mapping[str, str] = {"strands-agents": version("strands-agents")}
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "A model's calls name their arguments."}

    @contextmanager
    def open(self, world: World) -> Iterator[StrandsClient]:
        with StrandsClient.opened(world) as client:
            yield client


TARGET = StrandsTarget()
