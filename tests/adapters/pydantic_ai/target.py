"""The conformance target for Pydantic AI: runs of an agent with a scripted model."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from anyio.from_thread import BlockingPortal
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from pdp import Pep
from pdp.adapters.pydantic_ai import PydanticAiCapability
from pdp.json import canonical
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions


class Script:
    """A model that makes the scripted calls of each turn. `shown` contains the tool names in the latest request."""

    def __init__(self, *turns: Sequence[ToolCallPart]) -> None:
        self.turns, self.shown = list(turns), list[str]()
        self.model = FunctionModel(self.respond, stream_function=self.stream)

    def respond(self, messages: Any, info: Any) -> ModelResponse:
        self.shown = [tool.name for tool in info.function_tools]
        return ModelResponse(parts=self.turns.pop(0) if self.turns else [TextPart("done")])

    async def stream(self, messages: Any, info: Any) -> AsyncIterator[Any]:
        for at, part in enumerate(self.respond(messages, info).parts):
            if isinstance(part, TextPart):
                yield part.content
            else:
                yield {at: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def kit_tools(world: World) -> list[Any]:
    return [*functions(world).values(), shell(world)]


def outputs(result: Any) -> list[tuple[str, str]]:
    """Return the result text and the outcome of each call that the model made."""
    parts = [part for message in result.all_messages() for part in message.parts]
    return [(str(part.content), part.outcome) for part in parts if isinstance(part, ToolReturnPart)]


class PydanticAiClient(AdapterClient):
    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)
        self.waiting: dict[bytes, Any] = {}

    def agent(self, script: Script) -> Any:
        capabilities: list[Any] = [PydanticAiCapability(self.pep, World.session)]
        if self.world.setting == "beside":

            async def let_pass(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
                return args

            capabilities = [Hooks(before_tool_execute=let_pass), *capabilities, Hooks(before_tool_execute=let_pass)]
        tools, output = kit_tools(self.world), [str, DeferredToolRequests]
        return Agent(script.model, name="kit", tools=tools, capabilities=capabilities, output_type=output)

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        key = canonical([tool, arguments])
        waited = self.waiting.pop(key, None)
        if waited is None:
            result = await self.agent(Script([ToolCallPart(tool, arguments, tool_call_id=call_id)])).run("go")
        else:
            approvals = dict.fromkeys([call.tool_call_id for call in waited.output.approvals], True)
            history, results = waited.all_messages(), DeferredToolResults(approvals=approvals)
            result = await self.agent(Script()).run(message_history=history, deferred_tool_results=results)
        if isinstance(result.output, DeferredToolRequests):
            self.waiting[key] = result
            pending = next(iter(result.output.metadata.values()))
            return Observed(f"waits for {pending['approval_id']}", is_error=True, held=pending["approval_id"])
        told, became = outputs(result)[-1]
        return Observed(told, is_error=became != "success")

    async def alisted(self) -> Sequence[str]:
        script = Script()
        await self.agent(script).run("go")
        return script.shown


TARGET = AdapterTarget(
    "Pydantic AI", PydanticAiClient, "pydantic-ai-slim", why="In every call of a model, arguments have names."
)
