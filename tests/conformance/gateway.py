"""The target MCP gateway: the gateway's program, with a client and a server of the MCP SDK in each protocol version."""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client, ConnectMode
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from pdp.approvals.approvals import Approvals
from pdp.stores.url import OpenStores
from pdp.testing.conformance.target import Observed
from pdp.testing.conformance.world import World
from tests.support import PATIENCE, until
from tests.support.command_line import environment, pdp


class GatewayClient:
    """A client of a running gateway. The client has its own event loop."""

    def __init__(self, world: World, client: Client, portal: BlockingPortal) -> None:
        self.world, self.client, self.portal = world, client, portal

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        if by_position:
            raise NotImplementedError
        if self.world.setting == "raises":
            self.world.engine.become("slow")
        call = self.portal.start_task_soon(self._call, tool, dict(arguments))
        if self.world.setting == "raises":
            assert until(lambda: self.world.engine.asked.is_set() or call.done())
            for process in _gateway_processes(self.world.folder):
                os.kill(process, signal.SIGKILL)
        seen: Observed = call.result()
        return seen

    def cancel(self, tool: str, arguments: Mapping[str, Any], *, call_id: str) -> None:
        ended = threading.Event()

        async def call() -> None:
            try:
                await self._call(tool, dict(arguments))
            finally:
                ended.set()

        called = self.portal.start_task_soon(call)
        assert until(lambda: self.world.engine.asked.is_set() or ended.is_set())
        called.cancel()
        assert ended.wait(PATIENCE)
        # The gateway answers this call without its engine, so the answer shows that the gateway has read the earlier
        # messages.
        self.portal.call(self._call, "open_shell", {})

    def approve(self, held: str) -> None:
        with closing(OpenStores(f"sqlite:///{self.world.folder}/store.db")) as stores:
            Approvals(stores.approvals).grant(held, self.world.approver)

    def listed(self) -> Sequence[str]:
        return [tool.name for tool in self.portal.call(self.client.list_tools).tools]

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Observed:
        try:
            result = await self.client.call_tool(tool, arguments)
        except MCPError as error:
            return Observed(error.message, is_error=True)
        message = "\n".join(block.text for block in result.content if block.type == "text")
        held = re.search(r"approval ([\w-]+)", message)
        return Observed(message, bool(result.is_error), held[1] if held else None)


class _NoClient(GatewayClient):
    def __init__(self) -> None:
        """Skip the start of the superclass, which would connect to a server."""

    def call(self, tool: str, arguments: Mapping[str, Any], *, call_id: str, by_position: bool = False) -> Observed:
        raise NotImplementedError


class GatewayTarget:
    """`pdp mcp-gateway serve` over stdio."""

    spelling = "{}"
    impossible: Mapping[str, str] = {
        "positional arguments": "In every call over MCP, arguments have names.",
        "handler registered beside ours": "An MCP client calls one server, which has no other handler.",
    }

    def __init__(self, revision: str, mode: ConnectMode) -> None:
        self.name, self.mode = f"gateway, MCP {revision}", mode
        self.versions: Mapping[str, str] = {"mcp": version("mcp")}
        self.pins = b""

    @contextmanager
    def open(self, world: World) -> Iterator[GatewayClient]:
        if world.setting == "beside":
            yield _NoClient()
            return
        server = [
            sys.executable,
            str(Path(__file__).with_name("mcp_server.py")),
            str(world.folder / "manifest.yaml"),
            str(world.record),
        ]
        env = environment(XDG_STATE_HOME=str(world.folder))
        file = world.folder / "gateway.yaml"
        file.write_text(json.dumps({"servers": {"kit": {"command": server, "env": env}}}))
        pins = world.folder / "pins.json"
        if self.pins:
            pins.write_bytes(self.pins)
        else:
            with patch.dict(os.environ, XDG_STATE_HOME=str(world.folder)):
                assert pdp("mcp-gateway", "pin", "-c", file, "--yes").code == 0
            self.pins = pins.read_bytes()
        words = ["-m", "pdp", "mcp-gateway", "serve", "-c", str(file)]
        gateway = StdioServerParameters(command=sys.executable, args=words, env=env)
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(Client(gateway, mode=self.mode, cache=None)) as client,
        ):
            yield GatewayClient(world, client, portal)


def _gateway_processes(folder: Path) -> Iterator[int]:
    """Return the gateway processes that use a file in the folder."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().decode(errors="replace").split("\0")
            if "mcp-gateway" in words and str(folder / "gateway.yaml") in words:
                yield int(line.parent.name)
