"""The conformance target for the OpenAI Agents SDK: runs of an agent with a scripted model."""

from collections.abc import Sequence
from typing import Any

from agents import Agent, RunConfig, RunHooks, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from anyio.from_thread import BlockingPortal

from pdp import Pep
from pdp.adapters.openai_agents import guarded_openai_agent
from pdp.json import canonical
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.adapters.client import AdapterClient, AdapterTarget, shell
from tests.conformance.local import functions

# If the model calls a tool that was not shown to the model, the model gets an error and the run continues.
CONFIG = RunConfig(tool_not_found_behavior="return_error_to_model", tracing_disabled=True)


def kit_tools(world: World) -> list[Any]:

    return [function_tool(each, strict_mode=False) for each in [*functions(world).values(), shell(world)]]


def outputs(result: Any) -> list[str]:
    """Return the result of each tool call in the run."""
    return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]


class _Permissive(RunHooks):  # type: ignore[misc]
    """Hooks of the application that see every call and let it pass."""


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
        # Tool results of the SDK have no error flag, so an error is recognised by its text.
        return Observed(told, is_error=f"{tool} got" not in told)

    async def alisted(self) -> Sequence[str]:
        agent = self.agent([assistant_message("done")])
        await Runner.run(agent, "go", run_config=CONFIG)
        return [tool.name for tool in agent.model.first_call.tools]


TARGET = AdapterTarget(
    "OpenAI Agents SDK", OpenAiAgentsClient, "openai-agents", why="In every call of a model, arguments have names."
)
