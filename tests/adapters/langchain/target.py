"""An agent of `create_agent` as a target: each turn is a run of it, with a model that makes one call."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
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
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.local import functions


class ScriptedModel(GenericFakeChatModel):
    """Says what it is told to; `bound` has the names of the tools that it was told of at last."""

    bound: list[str] = Field(default_factory=list)

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        self.bound[:] = [tool.name for tool in tools]
        return self


def scripted(*turns: Sequence[tuple[str, Mapping[str, Any], str]] | str) -> ScriptedModel:
    """A model that in each turn makes calls (tool, arguments, id), or says a text, and then that it is done."""
    messages = [
        AIMessage(turn)
        if isinstance(turn, str)
        else AIMessage("", tool_calls=[{"name": name, "args": dict(args), "id": call} for name, args, call in turn])
        for turn in turns
    ]
    return ScriptedModel(messages=iter([*messages, AIMessage("done")]))


class PassAll(AgentMiddleware):
    """Somebody else's, which lets everything pass."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class LangChainClient(AdapterClient):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.tools = list(functions(self.world).values())

        def open_shell(command: str) -> str:
            return run_body(self.world.record, "open_shell", {"command": command})

        self.tools.append(open_shell)
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


class LangChainTarget:
    name = "LangChain, LangGraph"
    versions: Mapping[str, str] = {"langchain": version("langchain"), "langgraph": version("langgraph")}
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "A model's calls name their arguments."}

    @contextmanager
    def open(self, world: World) -> Iterator[LangChainClient]:
        with LangChainClient.opened(world) as client:
            yield client


TARGET = LangChainTarget()
