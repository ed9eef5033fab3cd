"""The OpenAI Agents SDK as a target: runs of an agent with a scripted model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from agents import Agent, RunConfig, RunHooks, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from anyio.from_thread import BlockingPortal

from pdp import Pep
from pdp.adapters.openai_agents import guarded_openai_agent
from pdp.json import canonical
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.local import functions

# Calls of tools that the model is not told of are told to it, and do not end the run.
CONFIG = RunConfig(tool_not_found_behavior="return_error_to_model", tracing_disabled=True)


def kit_tools(world: World) -> list[Any]:
    def open_shell(command: str) -> str:
        return run_body(world.record, "open_shell", {"command": command})

    return [function_tool(each, strict_mode=False) for each in [*functions(world).values(), open_shell]]


def outputs(result: Any) -> list[str]:
    """What the model was told, of each call since the run began."""
    return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]


class _Permissive(RunHooks):  # type: ignore[misc]
    """Somebody else's hooks: they see every call, and refuse none."""


class OpenAiAgentsClient(AdapterClient):
    def __init__(self, world: World, pep: Pep, portal: BlockingPortal) -> None:
        super().__init__(world, pep, portal)
        self.waiting: dict[bytes, Any] = {}
        self.hooks = _Permissive() if world.setting == "beside" else None

    def agent(self, *steps: Any) -> Any:
        agent = Agent(name="kit", model=ScriptedModel(steps), tools=kit_tools(self.world))
        return guarded_openai_agent(agent, self.pep, World.session)

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        key = canonical([tool, arguments])
        waited = self.waiting.pop(key, None)
        if waited is None:
            call = function_call(tool, arguments, call_id=call_id)
            agent, given = self.agent([call], [assistant_message("done")]), "go"
        else:
            agent, given = waited.last_agent, waited.to_state()
            for item in waited.interruptions:
                given.approve(item, always_approve=True)
        result = await Runner.run(agent, given, run_config=CONFIG, hooks=self.hooks)
        if result.interruptions:
            self.waiting[key] = result
            item = result.interruptions[0]
            pending = await item.agent.pending(item)
            return Observed(f"waits for {pending['approval_id']}", is_error=True, held=pending["approval_id"])
        told = outputs(result)[-1]
        # The SDK's result of a tool has no mark of an error.
        return Observed(told, is_error=f"{tool} got" not in told)

    async def alisted(self) -> Sequence[str]:
        agent = self.agent([assistant_message("done")])
        await Runner.run(agent, "go", run_config=CONFIG)
        return [tool.name for tool in agent.model.first_call.tools]


class OpenAiAgentsTarget:
    name = "OpenAI Agents SDK"
    versions: Mapping[str, str] = {"openai-agents": version("openai-agents")}
    spelling = "{}"
    impossible: Mapping[str, str] = {"positional arguments": "In every call of a model, arguments have names."}

    @contextmanager
    def open(self, world: World) -> Iterator[OpenAiAgentsClient]:
        with OpenAiAgentsClient.opened(world) as client:
            yield client


TARGET = OpenAiAgentsTarget()
