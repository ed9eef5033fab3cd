"""A run of the client in a process of its own: `again.py WORLD [SESSION]`. It prints its session and what is told."""

import asyncio
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from claude_agent_sdk import ClaudeSDKClient, create_sdk_mcp_server

from pdp import Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options
from pdp.engine.opa.engine import SidecarEngine
from pdp.testing.conformance.world import World
from tests.adapters.claude_agent_sdk.target import scripted, sdk_tools
from tests.support import PATIENCE
from tests.support.claude_code import ToolUse, model


async def main(folder: Path, session: str | None) -> None:
    """Make one call in a session that is new, or another one like it in a session from before."""
    bill = [ToolUse("mcp__kit__pay_bill", {"payee": "a", "amount": 5})]
    world: Any = SimpleNamespace(record=folder / "ran.jsonl")
    engine = SidecarEngine(json.loads((folder / "pdp.yaml").read_text())["opa_url"], timeout=PATIENCE)
    turns = [bill, bill] if session else [bill]
    with Pep.from_project(folder / "pdp.yaml", engine=engine) as pep, model(turns) as (url, results):
        kit = create_sdk_mcp_server("kit", tools=sdk_tools(pep, world))
        options = scripted(folder, url, mcp_servers={"kit": kit}, resume=session)
        async with ClaudeSDKClient(await guarded_claude_options(options, pep, World.session)) as client:
            await client.query("work")
            messages = [message async for message in client.receive_response()]
    told = [re.sub(r".* \(approval (\w+) is pending\)", r"\1", result.text) for result in results()]
    sys.stdout.write(json.dumps({"session": getattr(messages[-1], "session_id", None), "told": told}))


asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
