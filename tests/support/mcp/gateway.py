"""A gateway with test servers (server.py), and with a drafted or custom policy."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml
from mcp.client.client import Client

from pdp.gateway.config import GatewaySettings, read_gateway
from pdp.gateway.pins import install, pins_difference, read_pinned, survey
from pdp.gateway.server import open_gateway
from pdp.stores.url import OpenStores
from tests.support import PATIENCE, ROOT

SERVER = ROOT / "tests" / "support" / "mcp" / "server.py"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool(name: str = "echo", **stated: Any) -> dict[str, Any]:
    """Return the MCP declaration of a tool with this name."""
    return {"name": name, "description": f"{name} a text.", "inputSchema": TEXT, **stated}


def shown(result: Any) -> tuple[bool, list[str]]:
    """Return whether a tool result is an error, and the texts in the tool result."""
    return result.is_error, [block.text for block in result.content]


_SURVEYED: Final[dict[str, tuple[Any, list[str]]]] = {}
"""The tools of test servers by the state of these servers. Equal servers are started and listed only once for pins."""

BOTH: Final = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["new-client", "old-client"])
"""Runs a test once with a client of each protocol revision."""


class World:
    """A folder with the files of several test servers, and of a gateway to which the test servers belong."""

    def __init__(self, folder: Path, **servers: dict[str, Any]) -> None:
        self.folder = folder
        settings: dict[str, dict[str, Any]] = {}
        for name, stated in servers.items():
            (folder / name).mkdir()
            self.state(name, **stated)
            url = (folder / name / "url") if stated.get("http") else None
            command = [sys.executable, str(SERVER), str(folder / name)]
            settings[name] = {"command": command} if url is None else {"url": url.read_text()}
        self.servers = settings

    def state(self, name: str, **stated: Any) -> None:
        """Change the declaration and behaviour of a test server from now on."""
        (self.folder / name / "server.json").write_text(json.dumps({"tools": [tool()], **stated}))

    def calls(self, name: str = "one") -> list[Any]:
        log = self.folder / name / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def write(self, **stated: Any) -> GatewaySettings:
        """Write the configuration of the gateway and return its settings."""
        file = self.folder / "gateway.yaml"
        file.write_text(json.dumps({"servers": self.servers, "timeout": 60, **stated}))
        return read_gateway(file)

    async def pin(self, **stated: Any) -> tuple[list[str], list[str]]:
        """Write the configuration and pin the tools. Return the differences, and the tools that were not pinned."""
        settings = self.write(**stated)
        old = read_pinned(settings) if settings.pins.exists() else {}
        key = self._state_of_servers()
        found = _SURVEYED[key] = _SURVEYED.get(key) or await survey(settings)
        pins, left_out = deepcopy(found)
        install(settings, pins)
        return pins_difference(old, pins), left_out

    def _state_of_servers(self) -> str:
        files = {name: self.folder / name / "server.json" for name in self.servers}
        states = {name: file.read_text() if file.exists() else str(self.folder) for name, file in files.items()}
        return json.dumps([self.servers, states]).replace(f"{self.folder}/", "")

    async def ready(self, **rules: Any) -> Self:
        """Pin the tools that the servers declare, and allow all calls without approval."""
        await self.pin()
        self.loosen(**rules)
        return self

    def loosen(self, **rules: Any) -> None:
        """Change the policy so that it allows every tool without approval."""
        file = self.folder / "governance.yaml"
        actions = yaml.safe_load(file.read_text())["actions"]
        low = {"risk_tier": "low", "scopes": ["mcp.use"], **rules}
        file.write_text(yaml.safe_dump({"actions": {n: low | {"accepts": a["accepts"]} for n, a in actions.items()}}))

    def events(self, *fields: str) -> list[tuple[Any, ...]]:
        """Return these fields of each event in the audit log, in order."""
        stores = OpenStores(f"sqlite:///{self.folder / 'store.db'}")
        try:
            audit = stores.open_audit()
            rows = [json.loads(row.line) for row in audit.lines(-1, 1000)]
            audit.close()
        finally:
            stores.close()
        return [tuple(row.get(field) for field in fields) for row in rows]

    @asynccontextmanager
    async def client(self, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
        """Connect a client to a gateway in this process."""
        async with (
            open_gateway(read_gateway(self.folder / "gateway.yaml")) as gateway,
            Client(gateway.server(), mode=mode, cache=None, **options) as client,
        ):
            yield client


@contextmanager
def http_server(folder: Path, name: str, **stated: Any) -> Iterator[None]:
    """Run a test server over HTTP during the `with` block, with its files in `folder/name`."""
    (folder / name).mkdir()
    (folder / name / "server.json").write_text(json.dumps({"tools": [tool()], "http": True, **stated}))
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([sys.executable, str(SERVER), str(folder / name)]))
        stack.callback(process.terminate)
        until = time.monotonic() + PATIENCE
        while not (folder / name / "url").exists():
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError("the server did not start")
            time.sleep(0.02)
        yield
