"""The conformance target for Microsoft's Agent Framework: an `Agent` whose model follows a script."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionMiddleware,
    Message,
    ResponseStream,
)

from pdp.adapters.agent_framework import agent_framework_middleware
from pdp.testing.conformance.target import Observed
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions

Call = tuple[str, dict[str, Any], str]


class ScriptedModel(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[type-arg]
    """A scripted model that makes the next list of calls (tool, arguments, id) in each turn, and ends with "done"."""

    def __init__(self, *turns: Sequence[Call]) -> None:
        super().__init__()
        self.turns, self.told, self.tools = list(turns), list[Any](), list[list[str]]()

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        self.told = [content for message in messages for content in message.contents]
        self.tools.append([tool.name for tool in options.get("tools") or []])
        turn = self.turns.pop(0) if self.turns else ()
        contents = [Content.from_function_call(call_id, tool, arguments=given) for tool, given, call_id in turn]
        said = contents or [Content.from_text("done")]
        if not stream:
            return self._answer(said)
        return ResponseStream(self._parts(said), finalizer=ChatResponse.from_updates)

    async def _answer(self, said: list[Any]) -> Any:
        return ChatResponse(messages=[Message("assistant", said)])

    async def _parts(self, said: list[Any]) -> AsyncIterator[Any]:
        yield ChatResponseUpdate(role="assistant", contents=said)

    def results(self) -> dict[str, str]:
        return {each.call_id: each.result for each in self.told if each.type == "function_result"}


class Yes(FunctionMiddleware):
    """Middleware of the application that lets every call pass."""

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()


class AgentFrameworkClient(AdapterClient):
    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        own = agent_framework_middleware(self.pep, self.world.session)
        self.middleware = [Yes(), *own, Yes()] if self.world.setting == "beside" else own
        self.paused: dict[str, tuple[AgentSession, Any]] = {}

        self.tools = [*functions(self.world).values(), shell(self.world)]

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        named = repr((tool, arguments))
        session, request = self.paused.pop(named, (AgentSession(), None))
        model = ScriptedModel() if request else ScriptedModel([(tool, arguments, call_id)])
        agent = Agent(model, tools=self.tools, middleware=self.middleware)
        asked = Message("user", [request.to_function_approval_response(True)]) if request else "go"
        response = await agent.run(asked, session=session)
        for waits in response.user_input_requests:
            self.paused[named] = session, waits
            return Observed("the run waits", is_error=True, held=waits.additional_properties["approval"]["approval_id"])
        told = list(model.results().values())[-1]
        return Observed(told, told.startswith("Error: "))

    async def alisted(self) -> Sequence[str]:
        model = ScriptedModel()
        await Agent(model, tools=self.tools, middleware=self.middleware).run("go")
        return model.tools[0]


TARGET = AdapterTarget("Agent Framework", AgentFrameworkClient, "agent-framework-core")
