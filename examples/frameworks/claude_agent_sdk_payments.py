"""Supplier payments with the Claude Agent SDK: a wire runs, and another waits for approval. The model is scripted."""

import asyncio
import json
from http.server import ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ToolResultBlock, create_sdk_mcp_server, tool
from claude_messages import Script

from pdp import Approvals, Pep
from pdp.adapters.claude_agent_sdk import guarded_claude_options

PAYMENTS = Path(__file__).parents[1] / "payments"
SUPERVISOR = {"sub": "supervisor-9", "roles": ["payments.approver"]}
CLAIMS = {"sub": "officer-123", "emts": {"payments.wire.initiate": True}, "limits": {"wire.auto_approved": 25000}}
OFFICER = {"claims": CLAIMS, "facts": {"beneficiary_id": "bene-acme-441", "sanctions_status": "clear"}}
SCHEMA = next(
    each for each in json.loads((PAYMENTS / "manifest.json").read_text())["tools"] if each["name"] == "initiate_wire"
)["schema"]


@tool("initiate_wire", "Initiate wire transfer on payment hub.", SCHEMA)
async def initiate_wire(wire: dict[str, Any]) -> dict[str, Any]:
    print(f"  payment hub: {wire['amount']:,.0f} from {wire['source_account']} to {wire['beneficiary_id']}")
    return {"content": [{"type": "text", "text": f"sent {wire['reference']}"}]}


async def main(url: str, home: str) -> None:
    environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "HOME": home}
    environment["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
    options = ClaudeAgentOptions(
        mcp_servers={"hub": create_sdk_mcp_server("hub", tools=[initiate_wire])},
        allowed_tools=["mcp__hub__initiate_wire"], cwd=home, env=environment,
    )  # fmt: skip
    with Pep.from_project(PAYMENTS / "pdp.yaml", approvals=Approvals()) as pep:
        async with ClaudeSDKClient(await guarded_claude_options(options, pep, OFFICER)) as client:
            for amount in (20_000, 47_500, 47_500, 47_500):
                print(f"officer-123: pay {amount:,}")
                Script.asked = amount
                await client.query(f"pay {amount}")
                async for message in client.receive_response():
                    for block in getattr(message, "content", ()):
                        if isinstance(block, ToolResultBlock):
                            text = block.content if isinstance(block.content, str) else block.content[0]["text"]
                            print(f"  model is told: {text[:43]}")
                for held in (each for each in pep.approvals.list() if each.state == "pending"):
                    pep.approvals.grant(held.id, SUPERVISOR)
                    print(f"supervisor-9: granted what waits for {', '.join(held.approvers)}")


with ThreadingHTTPServer(("127.0.0.1", 0), Script) as api, TemporaryDirectory() as folder:
    Thread(target=api.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{api.server_port}", folder))
    api.shutdown()
