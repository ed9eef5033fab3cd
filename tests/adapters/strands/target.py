"""The conformance target for Strands: an agent whose model makes the calls in the user's message."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
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
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions

Call = tuple[str, dict[str, Any], str]


class ScriptedModel(Model):
    """A model that makes the calls in the user's message, `[[tool, arguments, call_id], ...]`, then says `done`."""

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
    """Return an agent with a scripted model. The agent prints nothing."""
    given = {"model": ScriptedModel(), "callback_handler": None, "conversation_manager": NullConversationManager()}
    return Agent(plugins=[*plugins], tools=[*tools], **{**given, **options})


def tools_of(world: World, pep: Pep) -> list[Any]:
    """Return the world's functions as Strands tools. Schemas are from the manifest, as Strands cannot infer them."""
    schemas = {name: entry.schema_ for name, entry in pep.manifest.tools.items()}
    return [tool(function, inputSchema={"json": schemas[name]}) for name, function in functions(world).items()]


class Run:
    """One conversation of an agent, with the results that the model got and the calls that wait for an approver."""

    def __init__(self, agent: Agent, **state: Any) -> None:
        self.agent, self.state = agent, state
        self.waits: dict[str, Any] = {}

    async def propose(self, *calls: Call) -> Any:
        """Send a user's message that lets the model make these calls."""
        return await self._say(json.dumps(calls))

    async def resume(self, *call_ids: str, response: Any = True) -> Any:
        return await self.answer({self.waits[call_id].id: response for call_id in call_ids})

    async def answer(self, responses: Mapping[str, Any]) -> Any:
        blocks = [{"interruptId": each, "response": response} for each, response in responses.items()]
        return await self._say([{"interruptResponse": block} for block in blocks])

    async def _say(self, prompt: Any) -> Any:
        result = await self.agent.invoke_async(prompt, invocation_state={**self.state})
        self.waits = {each.id.split(":")[-2]: each for each in result.interrupts or []}
        return result

    @property
    def told(self) -> dict[str, tuple[str, str]]:
        """Return the status and the text of each tool result that the model got."""
        blocks = [block for message in self.agent.messages for block in message["content"]]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        return {result["toolUseId"]: (result["status"], result["content"][0]["text"]) for result in results}


async def _passing(context: Any, next_fn: Any) -> AsyncGenerator[Any, None]:
    async for event in next_fn(context):
        yield event


def _waved_through(event: BeforeToolCallEvent) -> None:
    event.cancel_tool = False


class _Beside(Plugin):
    """A plugin of the application that lets every call pass."""

    name = "beside"

    def init_agent(self, agent: Agent) -> None:
        agent.add_hook(_waved_through)
        agent.add_middleware(ExecuteToolStage, _passing)


class StrandsClient(AdapterClient):
    """A client that makes each call in a separate conversation."""

    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)

        self.tools = [*tools_of(world, pep), tool(shell(world))]
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


TARGET = AdapterTarget("Strands", StrandsClient, "strands-agents")
