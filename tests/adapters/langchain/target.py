"""The conformance target for LangChain: each call is a run of a `create_agent` agent with a scripted model."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import Field

from pdp.adapters.langchain import LangChainMiddleware
from pdp.json import canonical
from pdp.testing.conformance.target import Observed
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions


class ScriptedModel(GenericFakeChatModel):
    """A model that returns scripted messages. `bound` contains the tool names in the latest request to the model."""

    bound: list[str] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        self.bound[:] = [tool.name for tool in tools]
        return self


def scripted(*turns: Sequence[tuple[str, Mapping[str, Any], str]] | str) -> ScriptedModel:
    """Return a model that in each turn makes calls (tool, arguments, id) or says a text. The last turn says "done"."""
    messages = [
        AIMessage(turn)
        if isinstance(turn, str)
        else AIMessage("", tool_calls=[{"name": name, "args": dict(args), "id": call} for name, args, call in turn])
        for turn in turns
    ]
    return ScriptedModel(messages=iter([*messages, AIMessage("done")]))


class PassAll(AgentMiddleware):
    """Middleware of the application that lets every call pass."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class LangChainClient(AdapterClient):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tools = list(functions(self.world).values())

        self.tools.append(shell(self.world))
        for function in self.tools:
            function.__doc__ = function.__name__
        self.saver, self.paused = InMemorySaver(), dict[bytes, tuple[str, str]]()

    def agent(self, model: Any) -> Any:
        beside = [PassAll()] if self.world.setting == "beside" else []
        guard = LangChainMiddleware(self.pep, self.world.session)
        return create_agent(model, self.tools, middleware=[*beside, guard], checkpointer=self.saver)

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        call = canonical([tool, arguments])
        thread, made = self.paused.pop(call, (str(uuid4()), call_id))
        resumed = made != call_id
        model = scripted() if resumed else scripted([(tool, arguments, call_id)])
        state = await self.agent(model).ainvoke(
            Command(resume="go on") if resumed else {"messages": "go"}, {"configurable": {"thread_id": thread}}
        )
        if "__interrupt__" in state:
            self.paused[call] = thread, made
            (pause,) = state["__interrupt__"]
            return Observed(str(pause.value), is_error=True, held=pause.value["approval_id"])
        seen = next(message for message in state["messages"] if message.type == "tool")
        return Observed(seen.text, is_error=seen.status == "error")

    async def alisted(self) -> Sequence[str]:
        model = scripted()
        await self.agent(model).ainvoke({"messages": "go"}, {"configurable": {"thread_id": "listing"}})
        return model.bound


TARGET = AdapterTarget("LangChain, LangGraph", LangChainClient, "langchain", "langgraph")
