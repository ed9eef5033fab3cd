"""The adapter of the Claude Agent SDK, on runs of its client with a scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, SdkMcpTool, create_sdk_mcp_server

from pdp import Approvals, Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options
from pdp.errors import UsageError
from pdp.testing.conformance.world import World

MANIFEST = "pdp/testing/conformance/manifest.yaml"
DISK = {"type": "object", "properties": {"disk": {"type": "string"}}, "required": ["disk"]}


async def wiped(_: Any) -> dict[str, Any]:
    raise NotImplementedError


def server(**schemas: Any) -> Any:
    return create_sdk_mcp_server("kit", tools=[SdkMcpTool(name, "", schema, wiped) for name, schema in schemas.items()])


@pytest.fixture
def pep() -> Iterator[Pep]:
    with Pep.from_files(MANIFEST, approvals=Approvals()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mcp_servers": "servers.json"}, "mcp_servers is a file"),
        ({"mcp_servers": {"far": {"type": "http", "url": "http://127.0.0.1:1"}}}, "nothing decides"),
        ({"tools": ["Bash"]}, "nothing decides"),
        ({"mcp_servers": {"a": server(wipe_disk=DISK), "b": server(wipe_disk=DISK)}}, "two servers"),
        (
            {"mcp_servers": {"a": server(wipe_disk=DISK | {"properties": {"disk": {"type": "integer"}}})}},
            "wipe_disk: disk",
        ),
    ],
)
async def test_what_cannot_be_guarded_is_refused_at_start(pep: Pep, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        await guarded_claude_options(ClaudeAgentOptions(**options), pep, World.session)

    assert why in caught.value.message
