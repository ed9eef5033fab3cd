"""The conformance target for LlamaIndex: runs of a `FunctionAgent` whose model follows a script."""

from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from anyio import CancelScope
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import HumanResponseEvent, InputRequiredEvent
from workflows.errors import WorkflowCancelledByUser

from pdp.adapters.llama_index import guarded_llama_tools
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions

Call = tuple[str, dict[str, Any], str]


class Script:
    """A scripted model that makes the next list of calls (tool, arguments, id) in each turn, and ends with "done"."""

    def __init__(self, *turns: Sequence[Call]) -> None:
        self.turns, self.told, self.tools = list(turns), dict[str, str](), list[list[str]]()

    def __call__(self, messages: Sequence[ChatMessage], **given: Any) -> ChatMessage:
        results = [message for message in messages if message.role == "tool"]
        self.told = {each.additional_kwargs["tool_call_id"]: each.content or "" for each in results}
        self.tools.append([tool.metadata.get_name() for tool in given.get("tools", [])])
        turn = self.turns.pop(0) if self.turns else ()
        calls = [ToolCallBlock(tool_call_id=call_id, tool_name=tool, tool_kwargs=args) for tool, args, call_id in turn]
        return ChatMessage(role="assistant", blocks=calls) if calls else ChatMessage(role="assistant", content="done")

    def model(self) -> Any:
        return MockFunctionCallingLLM(response_generator=self)


class LlamaIndexClient(AdapterClient):
    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self.paused: dict[str, tuple[Any, Any, Script]] = {}
        self.runs: list[Any] = []

        self.tools: list[Any] = guarded_llama_tools(
            [*functions(self.world).values(), shell(self.world)], self.pep, self.world.session
        )
        # LlamaIndex has no handlers for calls. Instead of a handler, another tool wraps each guarded tool.
        if self.world.setting == "beside":
            self.tools = [FunctionTool(async_fn=each.async_fn, metadata=each.metadata) for each in self.tools]

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        named = repr((tool, arguments))
        if named in self.paused:
            handler, event, script = self.paused.pop(named)
            handler.ctx.send_event(HumanResponseEvent(approval_id=event.approval_id, approved=True))
        else:
            script = Script([(tool, arguments, call_id)])
            handler = FunctionAgent(tools=self.tools, llm=script.model()).run("go")
            self.runs.append(handler)
        try:
            async for event in handler.stream_events():
                if isinstance(event, InputRequiredEvent):
                    self.paused[named] = handler, event, script
                    return Observed("the run waits", is_error=True, held=event.approval_id)
                if isinstance(event, ToolCallResult):
                    seen = Observed(event.tool_output.content, event.tool_output.is_error)
            await handler
        except CancelledError:
            # Without the shield, the portal would also cancel this request to cancel the run, so the run would
            # continue.
            with CancelScope(shield=True):
                await handler.cancel_run()
            raise
        assert list(script.told.values()) == [seen.message]
        return seen

    @classmethod
    @contextmanager
    def opened(cls, world: World) -> Iterator[Self]:
        with super().opened(world) as client:
            yield client
            client.portal.call(client.end)

    async def end(self) -> None:
        """Cancel all runs that have not ended."""
        for handler in self.runs:
            if handler.is_done():
                continue
            await handler.cancel_run()
            with suppress(CancelledError, WorkflowCancelledByUser):
                await handler

    async def alisted(self) -> Sequence[str]:
        script = Script()
        await FunctionAgent(tools=self.tools, llm=script.model()).run("go")
        return script.tools[0]


TARGET = AdapterTarget("LlamaIndex", LlamaIndexClient, "llama-index-core")
