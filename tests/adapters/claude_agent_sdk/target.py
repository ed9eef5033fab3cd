"""The conformance target for the Claude Agent SDK, with a scripted model and the suite's tools in this process."""

import re
from asyncio import Task, create_task, sleep, to_thread, wrap_future
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    McpServerStatus,
    SdkMcpTool,
    create_sdk_mcp_server,
)

from pdp import Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World, run_body
from tests.adapters.client import AdapterClient
from tests.conformance.claude import TOOLS, ClaudeCodeTarget, ScriptedCalls
from tests.conformance.hooks import ALLOWING
from tests.conformance.local import opened_pep
from tests.support import until
from tests.support.claude_code import model

_APPROVAL = re.compile(r"\(approval (\w+) is pending\)")


def sdk_tools(pep: Pep, world: World) -> list[SdkMcpTool[Any]]:
    """Return the suite's tools as tools of the SDK, with the schemas of the manifest."""

    def made(name: str, schema: Any) -> SdkMcpTool[Any]:
        async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": run_body(world.record, name, arguments)}]}

        return SdkMcpTool(name, name, schema, handler)

    shell = {"type": "object", "properties": {"command": {"type": "string"}}}
    declared = {name: dict(entry.schema_) for name, entry in pep.manifest.tools.items()}
    return [made(name, schema) for name, schema in {**declared, "open_shell": shell}.items()]


def scripted(folder: Path, url: str, **given: Any) -> ClaudeAgentOptions:
    """Return options of the SDK that use the scripted model at `url` and the folders of the test."""
    for name in ("person", "workspace"):
        (folder / name).mkdir(exist_ok=True)
    environment = {
        "HOME": str(folder / "person"), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
    }  # fmt: skip
    names = [f"mcp__kit__{tool}" for tool in TOOLS]
    return ClaudeAgentOptions(cwd=folder / "workspace", env=environment, allowed_tools=names, **given)


async def _allow(*_: Any) -> Any:
    return dict(ALLOWING)


class ClaudeAgentClient(AdapterClient):
    """A client of the SDK that makes all calls in one run, except that `interrupted` starts a separate run."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.model = ScriptedCalls()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        with model(self.model.turns, always=True) as (url, _):
            server = create_sdk_mcp_server("kit", tools=sdk_tools(self.pep, self.world))
            beside: Any = {"PreToolUse": [HookMatcher(hooks=[_allow])]} if self.world.setting == "beside" else None
            options = scripted(self.world.folder, url, mcp_servers={"kit": server}, hooks=beside)
            guarded = await guarded_claude_options(options, self.pep, self.world.session)
            async with ClaudeSDKClient(guarded) as self.client:
                while [server["status"] for server in await self._servers()] != ["connected"]:  # noqa: ASYNC110 - it has no event
                    await sleep(0.01)
                self.read = await self._begun()
                try:
                    yield
                finally:
                    self.model.given.put(None)
                    await self.read

    async def _begun(self) -> Task[None]:
        await self.client.query("work")

        async def read() -> None:
            async for _ in self.client.receive_response():
                pass

        return create_task(read())

    async def turn(self, tool: str, arguments: dict[str, Any], call_id: str) -> Observed:
        result = await wrap_future(self.model.give(tool, arguments))
        held = _APPROVAL.search(result.text)
        return Observed(result.text, result.is_error, held[1] if held else None)

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        self.portal.call(self._interrupted, tool, arguments)

    async def _interrupted(self, tool: str, arguments: Mapping[str, Any]) -> None:
        given = wrap_future(self.model.give(tool, arguments))
        await to_thread(until, lambda: self.world.engine.asked.is_set() or given.done())
        await self.client.interrupt()
        await self.read
        self.read = await self._begun()
        await given

    async def alisted(self) -> Sequence[str]:
        return [tool["name"] for server in await self._servers() for tool in server.get("tools", ())]

    async def _servers(self) -> Sequence[McpServerStatus]:
        return (await self.client.get_mcp_status())["mcpServers"]


class ClaudeAgentTarget:
    """The SDK's client with options from `guarded_claude_options`."""

    name = "Claude Agent SDK"
    versions: Mapping[str, str] = {"claude-agent-sdk": version("claude-agent-sdk"), **ClaudeCodeTarget.versions}
    impossible: Mapping[str, str] = {"positional arguments": "In every call of this client, arguments have names."}
    spelling = "{}"

    @contextmanager
    def open(self, world: World) -> Iterator[ClaudeAgentClient]:
        with opened_pep(world) as pep, start_blocking_portal() as portal:
            client = ClaudeAgentClient(world, pep, portal)
            with portal.wrap_async_context_manager(client.connected()):
                yield client


TARGET = ClaudeAgentTarget()
